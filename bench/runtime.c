// The container runtime of the benchmark: it executes plugins, or calls an agent directly, and measures the times.
//
// usage: runtime NETNS    the path of the network namespace in which it executes everything
//
// It reads orders on stdin and writes answers to stdout, both in this machine's byte order:
//   order   u32 calls at once, u32 calls; then each call: u32 kind, u32 sizes of program, environment, input and netns,
//           then these four. Environment: KEY=VALUE strings, each ended by a NUL. Program and netns end with a NUL.
//   answer  for each call, in order: i64 start, i64 end (nanoseconds, CLOCK_MONOTONIC), u32 exit status, u32 sizes of
//           standard output and standard error, then these two.
// EXECUTE  starts the program by posix_spawn with the input on its stdin. The call ends when the program was waited for.
// CONNECT  sends the input to the socket at `program`, with a descriptor of `netns` (none if empty). The output is the reply
//          until the server closes the connection. The descriptor is opened before the clock starts.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXECUTE = 0, CONNECT = 1, ENVIRONMENT_LIMIT = 64, THREADS_LIMIT = 256, CHUNK = 1 << 16 };

struct bytes { uint32_t size; char *data; };
struct call {
    uint32_t kind, status;
    struct bytes program, environment, input, netns, out, err;
    int64_t started, ended;
};
static struct { struct call *calls; uint32_t count; atomic_uint next; } order;

static _Noreturn void die(const char *what) {
    perror(what);
    exit(2);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void *allocate(size_t size) {
    void *data = calloc(1, size + 1);
    return data ? data : (die("calloc"), NULL);
}

// Memory for the output of a call is allocated before the clock starts, and grows only for larger output.
static void expect_output(struct call *call) {
    call->out.data = allocate(CHUNK);
    call->err.data = allocate(CHUNK);
}

static void read_to_end(int fd, struct bytes *into) {
    size_t room = CHUNK;
    for (ssize_t n; (n = read(fd, into->data + into->size, room - into->size)) > 0;) {
        into->size += (uint32_t)n;
        if (into->size < room)
            continue;
        into->data = realloc(into->data, room *= 2);
        if (!into->data)
            die("realloc");
    }
    close(fd);
}

// ---- one call

static void make_pipe(int ends[2]) {
    if (pipe2(ends, O_CLOEXEC) < 0)
        die("pipe2");
}

static void split_environment(struct bytes block, char **entries) {
    size_t count = 0;
    for (char *entry = block.data; entry < block.data + block.size; entry += strlen(entry) + 1)
        if (count < ENVIRONMENT_LIMIT)
            entries[count++] = entry;
    entries[count] = NULL;
}

static void execute(struct call *call) {
    int in[2], out[2], err[2];
    make_pipe(in), make_pipe(out), make_pipe(err);
    if (write(in[1], call->input.data, call->input.size) != (ssize_t)call->input.size)  // a pipe holds 64 KiB
        die("write to a plugin's stdin");
    close(in[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    char *arguments[] = {call->program.data, NULL}, *environment[ENVIRONMENT_LIMIT + 1];
    split_environment(call->environment, environment);
    expect_output(call);
    pid_t pid;
    int status;
    call->started = now();
    if (posix_spawn(&pid, call->program.data, &actions, NULL, arguments, environment) != 0)
        die(call->program.data);
    close(in[0]), close(out[1]), close(err[1]);
    read_to_end(out[0], &call->out);
    read_to_end(err[0], &call->err);
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    call->ended = now();
    call->status = WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : 128u + (uint32_t)WTERMSIG(status);
    posix_spawn_file_actions_destroy(&actions);
}

static void send_with_descriptor(int fd, struct bytes data, int descriptor) {
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
    struct iovec part = {data.data, data.size};
    size_t control_size = descriptor < 0 ? 0 : sizeof control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = control_size};
    if (sendmsg(fd, &message, 0) != (ssize_t)data.size)
        die("sendmsg");
}

static void connect_directly(struct call *call) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, call->program.data, sizeof address.sun_path - 1);
    int netns = *call->netns.data ? open(call->netns.data, O_RDONLY | O_CLOEXEC) : -1;
    expect_output(call);
    call->started = now();
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die(address.sun_path);
    send_with_descriptor(fd, call->input, netns);
    read_to_end(fd, &call->out);
    call->ended = now();
    if (netns >= 0)
        close(netns);
}

// ---- an order

static struct bytes read_bytes(uint32_t size) {
    struct bytes found = {size, allocate(size)};
    if (size && fread(found.data, size, 1, stdin) != 1)
        die("an order ends early");
    return found;
}

static void read_call(struct call *call) {
    uint32_t head[5];
    if (fread(head, sizeof head, 1, stdin) != 1)
        die("an order ends early");
    *call = (struct call){.kind = head[0]};
    call->program = read_bytes(head[1]);
    call->environment = read_bytes(head[2]);
    call->input = read_bytes(head[3]);
    call->netns = read_bytes(head[4]);
}

static void write_answer(struct call *call) {
    int64_t times[] = {call->started, call->ended};
    uint32_t head[] = {call->status, call->out.size, call->err.size};
    fwrite(times, sizeof times, 1, stdout);
    fwrite(head, sizeof head, 1, stdout);
    fwrite(call->out.data, call->out.size, 1, stdout);
    fwrite(call->err.data, call->err.size, 1, stdout);
    free(call->program.data), free(call->environment.data), free(call->input.data), free(call->netns.data);
    free(call->out.data), free(call->err.data);
}

static void *work(void *unused) {
    for (uint32_t n; (n = atomic_fetch_add(&order.next, 1)) < order.count;) {
        if (order.calls[n].kind == EXECUTE)
            execute(&order.calls[n]);
        else
            connect_directly(&order.calls[n]);
    }
    return unused;
}

static void carry_out(uint32_t at_once) {
    pthread_t threads[THREADS_LIMIT];
    atomic_store(&order.next, 0);
    at_once = at_once < THREADS_LIMIT ? at_once : THREADS_LIMIT;
    for (uint32_t n = 1; n < at_once; n++)
        if (pthread_create(&threads[n], NULL, work, NULL) != 0)
            die("pthread_create");
    work(NULL);
    for (uint32_t n = 1; n < at_once; n++)
        pthread_join(threads[n], NULL);
}

int main(int count, char **arguments) {
    int netns = count == 2 ? open(arguments[1], O_RDONLY | O_CLOEXEC) : -1;
    if (netns < 0 || setns(netns, CLONE_NEWNET) < 0)
        die("usage: runtime NETNS");
    for (uint32_t head[2]; fread(head, sizeof head, 1, stdin) == 1;) {
        order.count = head[1];
        order.calls = allocate(order.count * sizeof *order.calls);
        for (uint32_t n = 0; n < order.count; n++)
            read_call(&order.calls[n]);
        carry_out(head[0]);
        for (uint32_t n = 0; n < order.count; n++)
            write_answer(&order.calls[n]);
        fflush(stdout);
        free(order.calls);
    }
    return 0;
}
