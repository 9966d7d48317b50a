// The agent: a request over its unix socket, and the frames of the reply.

#include "shim.h"

enum {  // of a frame, in bytes: layout 1 has the magic and the numbers alone
    MAGIC_SIZE = 4, PROGRAM_SIZE = 28, PREFIX_SIZE = MAGIC_SIZE + PROGRAM_SIZE,
    FIELDS = PREFIX_SIZE + CONTINUATION_SIZE, HEADER_SIZE = FIELDS + 20,  // of a request
    INPUT_FIELD = FIELDS + 12,                                            // offset of the length of stdin
    FIRST_LAYOUT = FIELDS - MAGIC_SIZE,                                   // where a request of layout 1 begins
};
enum {  // in place of an exit status
    TIMEOUT_EXTENSION = 256,  // the call waits, its reply may take so many milliseconds from now on
    ALIVE = 257,              // the agent works
    HANDOVER = 258,           // the agent stops: another agent continues the call; wait for it this many milliseconds at most
};
static const struct limit INPUT_WAIT = SECONDS(10), SEND_WAIT = SECONDS(2);
static const struct limit SILENCE = SECONDS(5);  // without any frame: the agent sends one 0.5 to 1.5 s after a request, then every 2 s
static const int64_t NEXT_AGENT_MS = 15 * SECOND_MS, LOOK_MS = 100;  // after a handover: until the one-shot, between attempts
static const int64_t RESTART_MS = 5 * SECOND_MS / 2, STATUS_MS = SECOND_MS;  // after the end of an agent, until the one-shot
static const struct limit SPOOL_WAIT = SECONDS(2);    // with `agent_wait`: for an agent that accepts a DEL
enum { MIN_PAUSE_MS = 20, MAX_PAUSE_MS = 200 };  // between attempts to find it

// Request: "SVC2", our version, a continuation, as little-endian u32 the lengths of name, profile, environment and stdin and
// the flags (bit 0: a descriptor is attached), then name, profile, environment (KEY=VALUE strings, each NUL-terminated) and
// stdin. Reply: "SVC2", the agent's version, exit status, lengths of stdout and stderr, then these two.
// An agent of an earlier build takes and sends "SVC1" only, without version and continuation. It closes the connection of any
// other request without an answer. Then the same request is sent again in this layout.
enum { REQUEST_LIMIT = HEADER_SIZE + NAME_LIMIT + INSTALL_LIMIT + ENVIRONMENT_LIMIT + INPUT_LIMIT };
static struct {
    size_t start, end;  // it begins later in layout 1
    int netns;
    char data[REQUEST_LIMIT + 2];  // to see one byte too many, and a NUL
} request;
static const char *magic = "SVC2";
struct input input = {.data = request.data};
char handover_intent[CONTINUATION_SIZE + 1];
static bool is_accepted;          // the agent has sent something
static int64_t next_agent_until;  // until when to look for the agent that continues a call, or that follows a stopped one

static _Noreturn void fail_agent(const char *what, const char *more) {
    fail_unavailable(TEXT("the agent ", what, more), TEXT("see its log and repeat the call; socket ", agent_socket));
}

// What every layout from 2 on begins with: "SVC", a digit, the version of the sender.
static _Noreturn void fail_protocol(const char *prefix, size_t size) {
    char version[PROGRAM_SIZE + 1] = "";
    if (size < PREFIX_SIZE || memcmp(prefix, magic, MAGIC_SIZE - 1) != 0)
        fail_agent("speaks another protocol: is it of another version?", "");
    memcpy(version, prefix + MAGIC_SIZE, PROGRAM_SIZE);
    fail_unavailable(TEXT("the agent is of version ", version, ", this executable of " SVC_VERSION ": they have no protocol in common"),
                     TEXT("install the newer version of both, and restart the agent; socket ", agent_socket));
}

static void use_first_layout(void) {
    magic = "SVC1";
    request.start = FIRST_LAYOUT;
    memcpy(request.data + FIRST_LAYOUT, magic, MAGIC_SIZE);
}

static void use_newest_layout(void) {
    magic = "SVC2";
    request.start = 0;
    memcpy(request.data + PREFIX_SIZE, handover_intent, CONTINUATION_SIZE);
}

// Leaves a DEL in the spool if the agent has given no sign of life, for then it has not accepted the call. An agent that goes on
// may find the call on the socket and in the spool.
static void spool_unaccepted(void) {
    if (verb->bit != DEL || !agent_wait.ms || is_accepted || is_spooled)
        return;
    use_newest_layout();
    spool(request.data, request.end);
    finish(STDOUT_FILENO, 0, TEXT(NULL));
}

static _Noreturn void fail_silent(const char *limit) {
    spool_unaccepted();
    fail_unavailable(TEXT("the agent does not respond: it is stopped or hung: no sign of life within ", limit),
                     TEXT("let it go on (SIGCONT) or restart it, and repeat the call; socket ", agent_socket));
}

static void read_netconf(void) {
    enum { LIMIT = INPUT_LIMIT + 1 };
    int cause = read_some(STDIN_FILENO, input.data, LIMIT, LIMIT, &input.size, now_ms() + INPUT_WAIT.ms);
    bool late = cause == ETIMEDOUT;
    if (cause)
        fail(IO_FAILURE, TEXT("cannot read stdin: ", late ? "no end within " : strerror(cause), late ? INPUT_WAIT.text : ""),
             TEXT("the runtime has to write the network configuration there and close it"));
    if (input.size > INPUT_LIMIT)
        fail(BAD_CONFIG, TEXT("the network configuration on stdin is larger than 1 MiB"), TEXT("make it smaller"));
}

// Packs what precedes stdin and returns its end.
static char *pack_environment(void) {
    const char *netns = variable("CNI_NETNS");
    request.netns = *netns ? openat(AT_FDCWD, netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;  // the agent checks it
    size_t name_size = strlen(name), profile_size = strlen(profile), environment_size = 0;
    if (name_size > NAME_LIMIT)
        fail(BAD_ENVIRONMENT, TEXT("the plugin's name is longer than 256 bytes"), TEXT("install it by a shorter one"));
    char *environment = mempcpy(mempcpy(request.data + HEADER_SIZE, name, name_size), profile, profile_size);
    for (char **entry = environ; *entry; entry++) {
        size_t size = belongs_to_call(*entry) ? strlen(*entry) + 1 : 0;
        if (size > ENVIRONMENT_LIMIT - environment_size)
            fail(BAD_ENVIRONMENT, TEXT("the CNI_ variables are larger than 128 KiB"), TEXT("see CNI_ARGS"));
        memcpy(environment + environment_size, *entry, size);
        environment_size += size;
    }
    uint32_t fields[] = {htole32((uint32_t)name_size), htole32((uint32_t)profile_size), htole32((uint32_t)environment_size),
                         0, htole32(request.netns >= 0)};
    memcpy(mempcpy(request.data, magic, MAGIC_SIZE), SVC_VERSION, sizeof SVC_VERSION <= PROGRAM_SIZE ? sizeof SVC_VERSION : PROGRAM_SIZE);
    memcpy(request.data + FIELDS, fields, sizeof fields);
    return environment + environment_size;
}

void pack_request(void) {
    input.data = pack_environment();
    read_netconf();
    uint32_t size = htole32((uint32_t)input.size);
    memcpy(request.data + INPUT_FIELD, &size, sizeof size);
    request.end = (size_t)(input.data + input.size - request.data);
}

// Returns a socket, or -1 with the errno of connect. SO_SNDTIMEO bounds the wait for room in the agent's backlog.
static int connect_agent(int64_t ms) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(agent_socket) >= sizeof address.sun_path)
        fail_unavailable(TEXT("the path of the agent's socket is longer than 107 bytes: ", agent_socket),
                         TEXT("record a shorter socket= in ", install_path));
    strcpy(address.sun_path, agent_socket);
    struct timeval wait = {ms / 1000, ms % 1000 * 1000};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) < 0)
        return -1;
    return connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -1 : fd;
}

// Sends the request, the descriptor with its first byte. Returns 0 or an errno.
static int send_request(int fd, int64_t until) {
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &request.netns, sizeof(int));
    char *data = request.data + request.start;
    size_t size = request.end - request.start;
    struct iovec part = {data, size};
    socklen_t control_size = request.netns < 0 ? 0 : sizeof control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = control_size};
    ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT);  // a new socket has room
    return n < 0 ? errno : write_all(fd, data + n, size - (size_t)n, until);
}

struct deadline { int64_t until; const char *text; };  // of the whole reply

// Returns whether `least` bytes are there. They are not if the agent closed the connection.
static bool receive(int fd, char *data, size_t least, size_t most, size_t *have, struct deadline deadline) {
    const struct limit *silence = verb->bit == DEL && agent_wait.ms && !is_accepted ? &SPOOL_WAIT : &SILENCE;
    bool gives_signs = request.start == 0, is_short = verb->limit.ms < silence->ms;
    int64_t silent = gives_signs ? now_ms() + silence->ms : INT64_MAX;
    bool is_late = deadline.until < silent;
    int cause = read_some(fd, data, least, most, have, is_late ? deadline.until : silent);
    is_accepted |= *have > 0;
    if (cause == ETIMEDOUT && gives_signs && (!is_late || is_short))
        fail_silent(is_late ? deadline.text : silence->text);
    if (cause == ETIMEDOUT)
        fail_agent("did not answer within ", deadline.text);
    return *have >= least;
}

static void require_received(bool received) {
    if (!received)
        fail_agent("closed the connection before the end of its reply", "");
}

struct reply { uint32_t status, stdout_size, stderr_size; };

static _Noreturn void print_reply(int fd, struct reply reply, size_t header_size, size_t have, struct deadline deadline) {
    size_t stdout_size = reply.stdout_size, size = stdout_size + reply.stderr_size;
    if (reply.status > 255)
        fail_agent("speaks another protocol: is it of another version?", "");
    if (size > REPLY_LIMIT)
        fail_agent("announced a reply larger than 16 MiB", "");
    if (reply.status == 0 && stdout_size == 0 && verb->bit & (ADD | VERSION))
        fail_agent("sent no result", "");
    char *text = output.data + header_size;
    have -= header_size;
    if (size > sizeof output.data - header_size) {
        char *room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED)
            fail_agent("sent a reply for which there is no memory", "");
        text = memcpy(room, text, have);
    }
    require_received(receive(fd, text, size, size, &have, deadline));
    if (is_spooled && reply.status == 0)
        remove_from_spool();
    bool printed = print(STDOUT_FILENO, text, stdout_size);
    print(STDERR_FILENO, text + stdout_size, size - stdout_size);
    _exit(printed || reply.status ? (int)reply.status : 1);
}

static void take_over(int fd, size_t header_size, size_t have, int64_t ms, struct deadline deadline) {
    require_received(receive(fd, output.data, header_size + CONTINUATION_SIZE, sizeof output.data, &have, deadline));
    memcpy(handover_intent, output.data + header_size, CONTINUATION_SIZE);
    memcpy(request.data + PREFIX_SIZE, handover_intent, CONTINUATION_SIZE);
    next_agent_until = now_ms() + (ms < NEXT_AGENT_MS ? ms : NEXT_AGENT_MS);
}

// Returns true if the agent handed the call over, false if it closed the connection without an answer.
static bool await_reply(int fd, int64_t started) {
    size_t have = 0, header_size = (request.start ? MAGIC_SIZE : PREFIX_SIZE) + sizeof(struct reply);
    struct deadline deadline = {started + verb->limit.ms, verb->limit.text};
    for (;;) {
        bool received = receive(fd, output.data, MAGIC_SIZE, sizeof output.data, &have, deadline);
        if (have == 0)
            return false;
        require_received(received);
        if (memcmp(output.data, magic, MAGIC_SIZE) != 0) {
            receive(fd, output.data, PREFIX_SIZE, sizeof output.data, &have, deadline);
            fail_protocol(output.data, have);
        }
        require_received(receive(fd, output.data, header_size, sizeof output.data, &have, deadline));
        struct reply reply;
        memcpy(&reply, output.data + header_size - sizeof reply, sizeof reply);
        reply = (struct reply){le32toh(reply.status), le32toh(reply.stdout_size), le32toh(reply.stderr_size)};
        if (reply.status == HANDOVER) {
            take_over(fd, header_size, have, reply.stdout_size, deadline);
            return true;
        }
        if (reply.status != ALIVE && (reply.status != TIMEOUT_EXTENSION || reply.stdout_size > INT32_MAX))
            print_reply(fd, reply, header_size, have, deadline);
        have -= header_size;
        memmove(output.data, output.data + header_size, have);
        if (reply.status == TIMEOUT_EXTENSION)
            deadline = (struct deadline){now_ms() + (int64_t)reply.stdout_size, "the time that it asked for"};
    }
}

// As await_reply.
static bool exchange(int fd, int64_t started, const struct limit *send_limit) {
    is_accepted = false;
    int cause = send_request(fd, started + send_limit->ms);
    if (cause == ETIMEDOUT) {
        spool_unaccepted();
        fail_agent("did not take the call within ", send_limit->text);
    }
    if (cause && cause != EPIPE && cause != ECONNRESET)  // these two: it may have refused the call and sent the reason
        fail_agent("cannot be told: ", strerror(cause));
    bool is_handed_over = await_reply(fd, started);
    close(fd);
    return is_handed_over;
}

// An agent that stops leaves a mark beside its socket. For a moment after that another one is expected: it serves the call
// sooner than the one-shots of all waiting calls would, which keep the processors from it.
static void expect_restart(void) {
    static char mark[sizeof((struct sockaddr_un *)0)->sun_path + sizeof ".stopped"];
    struct stat found;
    stpcpy(stpcpy(mark, agent_socket), ".stopped");  // connect_agent has checked its length
    if (look_at(AT_FDCWD, mark, 0, &found) < 0)
        return;
    int64_t age = now_ns(CLOCK_REALTIME) / 1000000 - (found.st_mtim.tv_sec * 1000 + found.st_mtim.tv_nsec / 1000000);
    int64_t left = (verb->bit == STATUS ? STATUS_MS : RESTART_MS) - age;
    if (age >= 0 && left > 0)
        next_agent_until = now_ms() + left;
}

static const struct limit *shorter(const struct limit *one, const struct limit *other) {
    return one->ms < other->ms ? one : other;
}

int call_agent(void) {
    const struct limit *send_limit = shorter(&verb->limit, &SEND_WAIT);
    bool is_first = true;
    for (;;) {
        int64_t started = now_ms();
        int fd = connect_agent(send_limit->ms), cause = errno;
        bool is_handed_over = fd >= 0 && exchange(fd, started, send_limit);
        if (fd < 0 && cause == EAGAIN)
            fail_agent("did not accept the call within ", send_limit->text);
        if (fd < 0 && is_first)
            expect_restart();
        is_first = false;
        if (!is_handed_over && request.start)  // the agent of an earlier build closed the connection, or is gone
            require_received(false);
        if (fd >= 0 && !is_handed_over)
            use_first_layout();
        else if (fd < 0 && now_ms() >= next_agent_until)
            return cause;
        else
            poll(NULL, 0, LOOK_MS);
    }
}

// The next pause between attempts. Hundreds of executables may wait: each has pauses of its own.
static int next_pause(int *most) {
    int64_t seed[] = {now_ns(CLOCK_MONOTONIC), getpid()};
    int least = *most / 2, pause = least + (int)(hash_of(HASH_BEGIN, seed, sizeof seed) % (uint64_t)least);
    *most = *most < MAX_PAUSE_MS / 2 ? 2 * *most : MAX_PAUSE_MS;
    return pause;
}

static _Noreturn void give_up(const struct limit *limit, const struct limit *send_limit) {
    if (verb->bit != DEL)
        fail(verb->bit == STATUS ? NOT_AVAILABLE : TRY_LATER,
             TEXT("the agent is not running: none accepted the call within ", limit->text),
             TEXT("start it, or see in its log why it does not start, and repeat the call; socket ", agent_socket));
    use_newest_layout();
    spool(request.data, request.end);
    int fd = connect_agent(LOOK_MS);  // an agent that has started meantime may have read the spool before
    if (fd >= 0)
        exchange(fd, now_ms(), send_limit);
    finish(STDOUT_FILENO, 0, TEXT(NULL));
}

_Noreturn void call_expected_agent(void) {
    const struct limit *send_limit = shorter(&verb->limit, &SEND_WAIT);
    const struct limit *limit = verb->bit & (CHECK | STATUS) ? shorter(&verb->limit, &agent_wait)
                              : verb->bit == DEL ? shorter(&SPOOL_WAIT, &agent_wait) : &agent_wait;
    int64_t began = now_ms(), until = began + limit->ms;
    for (int most = MIN_PAUSE_MS * 2;;) {
        int64_t started = verb->bit == STATUS ? began : now_ms();
        int fd = connect_agent(send_limit->ms);
        if (fd >= 0 && exchange(fd, started, send_limit))
            until = now_ms() + agent_wait.ms;
        else if (fd >= 0 && verb->bit == DEL && now_ms() + limit->ms < began + agent_wait.ms)
            until = now_ms() + limit->ms;  // that agent has ended
        if (fd >= 0 && !request.start && !*handover_intent)
            use_first_layout();
        else
            use_newest_layout();
        int64_t left = until - now_ms(), pause = next_pause(&most);
        if (left <= 0)
            give_up(limit, send_limit);
        poll(NULL, 0, (int)(left < pause ? left : pause));
    }
}
