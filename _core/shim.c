// svc: what a container runtime executes for every CNI call. It hands the call to the resident agent over a unix socket
// and prints the agent's reply. Without an agent it runs a one-shot Python process that does the same.
//
// Rules:
// 1. Nothing waits without a deadline: runtimes hold locks while a plugin runs.
// 2. No JSON is parsed: "cniVersion" is found by a scan, the rest of the netconf is the agent's business.
// 3. No stdio, no malloc: it starts in 0.1 ms. What that takes is page faults: what a call touches lies close together,
//    and the reply is read to where a message of our own would stand. The one-shot is a child that dies with it.
// 4. A failure is one CNI error object on stdout and exit status 1, also where the one-shot ends without any.

#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SECOND_MS  // tests build with short seconds
#define SECOND_MS 1000
#endif

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define TEXT(...) ((const char *const[]){__VA_ARGS__, NULL})
#define LATEST_VERSION "1.1.0"
#define SPEC_VERSIONS(_) "0.1.0" _ "0.2.0" _ "0.3.0" _ "0.3.1" _ "0.4.0" _ "1.0.0" _ LATEST_VERSION

enum {  // bytes; the first four as in svc/cni/frame.py
    NAME_LIMIT = 256, ENVIRONMENT_LIMIT = 128 << 10, INPUT_LIMIT = 1 << 20, REPLY_LIMIT = 16 << 20,
    INSTALL_LIMIT = 4 << 10, VERSION_LIMIT = 16, SHOWN_LIMIT = 5000,
};
enum {  // of a frame, in bytes: layout 1 has the magic and the numbers alone
    MAGIC_SIZE = 4, PROGRAM_SIZE = 28, PREFIX_SIZE = MAGIC_SIZE + PROGRAM_SIZE, CONTINUATION_SIZE = 20,
    FIELDS = PREFIX_SIZE + CONTINUATION_SIZE, HEADER_SIZE = FIELDS + 20,  // of a request
    INPUT_FIELD = FIELDS + 12,                                            // where the length of stdin stands
    FIRST_LAYOUT = FIELDS - MAGIC_SIZE,                                   // where a request of layout 1 begins
};
enum {  // in place of an exit status
    PATIENCE = 256,  // the call waits, its reply may take so many milliseconds from now on
    ALIVE = 257,     // the agent works
    HANDOVER = 258,  // the agent stops: the call goes on with the next one, which it waits for so many milliseconds at most
};

struct limit { int64_t ms; const char *text; };
#define SECONDS(n) {(n) * SECOND_MS, #n " s"}
static const struct limit INPUT_WAIT = SECONDS(10), SEND_WAIT = SECONDS(2), OUTPUT_WAIT = SECONDS(10);
static const struct limit SILENCE = SECONDS(5);  // without any frame: the agent sends one after 2 s and every 2 s
static const int64_t NEXT_AGENT_MS = 15 * SECOND_MS, LOOK_MS = 100;  // after a handover: until the one-shot, between looks
static const int64_t OPTIONAL_INPUT_MS = 50;  // VERSION and refused calls need no stdin: a runtime may send nothing

enum { ADD = 1, DEL = 2, CHECK = 4, GC = 8, STATUS = 16, VERSION = 32 };
static const struct verb { const char *name; unsigned bit; struct limit limit; } VERBS[] = {
    {"ADD", ADD, SECONDS(90)},  // the limit runs from connecting to the whole reply
    {"DEL", DEL, SECONDS(90)},
    {"CHECK", CHECK, SECONDS(10)},
    {"GC", GC, SECONDS(90)},
    {"STATUS", STATUS, SECONDS(1)},
    {"VERSION", VERSION, SECONDS(0)},
};
static const struct { const char *variable; unsigned required_by; } INPUTS[] = {
    {"CNI_CONTAINERID", ADD | DEL | CHECK},
    {"CNI_NETNS", ADD | CHECK},
    {"CNI_IFNAME", ADD | DEL | CHECK},
    {"CNI_PATH", GC},
};

static const char BAD_ENVIRONMENT[] = "4", IO_FAILURE[] = "5", BAD_CONFIG[] = "7", NOT_AVAILABLE[] = "50";  // CNI codes

static char *name;  // as called, without directories: "svc", "svc-ipam", or what it is installed as
static const struct verb *verb;
static struct { size_t size; char data[64 << 10]; } output;  // room for two shown paths, escaped

// Request: "SVC2", our version, a continuation, as little-endian u32 the lengths of name, profile, environment and stdin and
// the flags (bit 0: a descriptor is attached), then name, profile, environment (KEY=VALUE strings, each NUL-terminated) and
// stdin. Reply: "SVC2", the agent's version, exit status, lengths of stdout and stderr, then these two.
// An agent of the last release takes "SVC1" alone, without version and continuation, and so are its replies. It closes the
// connection of any other request without a word: then the same request is sent again as it takes it.
enum { REQUEST_LIMIT = HEADER_SIZE + NAME_LIMIT + INSTALL_LIMIT + ENVIRONMENT_LIMIT + INPUT_LIMIT };
static struct {
    size_t start, end;  // it begins later in layout 1
    int netns;
    char data[REQUEST_LIMIT + 2];  // to see one byte too many, and a NUL
} request;
static const char *magic = "SVC2";
static struct { size_t size; char *data; } input = {.data = request.data};        // stdin, read to where it is sent from

// ---- waiting, reading, writing
static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// False at the deadline. A broken descriptor counts as ready: the call that follows says why.
static bool wait_for(int fd, short events, int64_t until) {
    struct pollfd watched = {.fd = fd, .events = events};
    for (int64_t left; (left = until - now_ms()) > 0;)
        if (poll(&watched, 1, (int)left) > 0)
            return true;
    return false;
}

// Reads until at least so many bytes are there or the input ends; *have counts them. Returns 0 or an errno.
static int read_some(int fd, char *data, size_t least, size_t most, size_t *have, int64_t until) {
    for (ssize_t n = 1; n != 0 && *have < least;) {
        if (!wait_for(fd, POLLIN, until))
            return ETIMEDOUT;
        n = read(fd, data + *have, most - *have);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return errno;
        *have += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

// A pipe or socket that is ready takes PIPE_BUF bytes without blocking: the deadline holds where nobody reads.
static int write_all(int fd, const char *data, size_t size, int64_t until) {
    for (size_t written = 0; written < size;) {
        if (!wait_for(fd, POLLOUT, until))
            return ETIMEDOUT;
        ssize_t n = write(fd, data + written, size - written < PIPE_BUF ? size - written : PIPE_BUF);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return errno;
        written += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static bool print(int fd, const char *data, size_t size) {
    return write_all(fd, data, size, now_ms() + OUTPUT_WAIT.ms) == 0;
}

static void put(const char *const *pieces) {
    for (; *pieces; pieces++) {
        size_t size = strnlen(*pieces, sizeof output.data - output.size);
        memcpy(output.data + output.size, *pieces, size);
        output.size += size;
    }
}

static _Noreturn void finish(int fd, int status, const char *const *last_pieces) {
    put(last_pieces);
    _exit(print(fd, output.data, output.size) ? status : 1);
}

// ---- errors
// Size of the UTF-8 character at p, 0 for a control character or none. The NUL that ends a text is never read past.
static size_t printable_size(const unsigned char *p) {
    size_t size = *p < 0x20 ? 0 : *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < size; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xf0 && p[1] < 0x90);
    bool outside = (*p == 0xed && p[1] > 0x9f) || (*p == 0xf4 && p[1] > 0x8f);  // surrogates, past U+10FFFF
    return overlong || outside ? 0 : size;
}

static void put_json(const char *const *pieces) {
    static const char HEX[] = "0123456789abcdef";
    for (; *pieces; pieces++)
        for (const char *p = *pieces; *p && p < *pieces + SHOWN_LIMIT;) {
            size_t size = printable_size((const unsigned char *)p);
            char character[5] = "";
            memcpy(character, p, size);
            if (size == 0)
                put(TEXT("\\u00", (char[]){HEX[*p >> 4 & 15], HEX[*p & 15], '\0'}));
            else
                put(TEXT(*p == '"' || *p == '\\' ? "\\" : "", character));
            p += size ? size : 1;
        }
}

// The value of the first `"cniVersion" : "..."` of stdin. A call refused early has not read it: then it waits a little.
static const char *cni_version(void) {
    static const char KEY[] = "cniVersion\"", SPACE[] = " \t\r\n";
    static char version[VERSION_LIMIT + 1];
    if (input.size == 0)
        read_some(STDIN_FILENO, input.data, INPUT_LIMIT, INPUT_LIMIT, &input.size, now_ms() + OPTIONAL_INPUT_MS);
    input.data[input.size] = '\0';
    const char *p = input.data, *end = input.data + input.size;
    while ((p = memchr(p, '"', (size_t)(end - p))) != NULL) {
        if (strncmp(++p, KEY, sizeof KEY - 1) != 0)
            continue;
        p += sizeof KEY - 1;
        p += strspn(p, SPACE);
        if (*p != ':' || *(p += 1 + strspn(p + 1, SPACE)) != '"')
            continue;
        size_t size = strspn(++p, "0123456789.");
        return size > 0 && size <= VERSION_LIMIT && p[size] == '"' ? memcpy(version, p, size) : LATEST_VERSION;
    }
    return LATEST_VERSION;
}

static _Noreturn void fail(const char *code, const char *const *msg, const char *const *details) {
    put(TEXT("{\"cniVersion\":\"", cni_version(), "\",\"code\":", code, ",\"msg\":\""));
    put_json(msg);
    put(TEXT("\",\"details\":\""));
    put_json(details);
    finish(STDOUT_FILENO, 1, TEXT("\"}\n"));
}

// A STATUS that cannot be served has a code of its own.
static _Noreturn void fail_unavailable(const char *const *msg, const char *const *details) {
    fail(verb->bit == STATUS ? NOT_AVAILABLE : IO_FAILURE, msg, details);
}

// ---- the call
static char *variable(const char *key) {
    char *value = getenv(key);
    return value ? value : "";
}

static void set_verb(const char *command) {
    for (size_t i = 0; i < COUNT(VERBS); i++)
        if (strcmp(command, VERBS[i].name) == 0)
            verb = &VERBS[i];
    if (!verb)
        fail(BAD_ENVIRONMENT, TEXT("unknown CNI_COMMAND: ", command), TEXT("it is ADD, DEL, CHECK, GC, STATUS or VERSION"));
}

static void require_variables(void) {
    const char *msg[2 * COUNT(INPUTS) + 1] = {NULL};
    size_t n = 0;
    for (size_t i = 0; i < COUNT(INPUTS); i++)
        if ((INPUTS[i].required_by & verb->bit) && !*variable(INPUTS[i].variable)) {
            msg[n] = n ? ", " : "missing environment variables: ";
            msg[n + 1] = INPUTS[i].variable;
            n += 2;
        }
    if (n > 0)
        fail(BAD_ENVIRONMENT, msg, TEXT(verb->name, " needs them; the container runtime sets them"));
}

static void read_netconf(void) {
    enum { LIMIT = INPUT_LIMIT + 1 };
    int cause = read_some(STDIN_FILENO, input.data, LIMIT, LIMIT, &input.size, now_ms() + INPUT_WAIT.ms);
    bool late = cause == ETIMEDOUT;
    if (cause)
        fail(IO_FAILURE, TEXT("cannot read stdin: ", late ? "no end within " : strerror(cause), late ? INPUT_WAIT.text : ""),
             TEXT("the runtime has to write the network configuration there and close it"));
    if (input.size > INPUT_LIMIT)
        fail(BAD_CONFIG, TEXT("the network configuration on stdin is larger than 1 MiB"), TEXT("make it smaller; nothing was done"));
}

// ---- the installation
static char *agent_socket = "/var/run/svc/agent.sock", *profile = "", *python;  // python as recorded, NULL when it is not
static char place[PATH_MAX + 16 + INSTALL_LIMIT + 2];  // path of the record, then its text
static size_t directory_size;                          // the part of the path that is the executable's too; 0: not known
static char *install_path = place;                     // "" when there is no record

// The record lies beside the executable itself and has its name, so several installations live side by side, also in one
// directory. An executable without one of its own takes svc.install. Returns it open, or -1 with the errno of open.
static int open_install(void) {
    ssize_t size = readlink("/proc/self/exe", place, PATH_MAX);
    char *slash = size > 0 && place[0] == '/' ? strrchr(place, '/') : NULL;
    errno = ENOENT;
    if (!slash)  // no /proc here, or no name for the file in this mount namespace
        return -1;
    directory_size = (size_t)(slash + 1 - place);
    static const char GONE[] = " (deleted)";  // replaced by an installation since this call began
    char *end = place + size, *gone = end - (sizeof GONE - 1);
    strcpy(gone > place && memcmp(gone, GONE, sizeof GONE - 1) == 0 ? gone : end, ".install");
    int fd = open(place, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    strcpy(place + directory_size, "svc.install");
    return open(place, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

static _Noreturn void fail_install(const char *cause) {
    fail_unavailable(TEXT("cannot use ", place, ": ", cause),
                     TEXT("it has lines key=value, socket= among them, 4096 bytes at most; repeat `svcctl install`"));
}

static void read_install(void) {
    int fd = open_install();
    char *text = place + strlen(place) + 1;
    ssize_t size = fd < 0 ? -1 : read(fd, text, INSTALL_LIMIT + 1);
    if (fd < 0 && errno == ENOENT) {
        install_path = "";
        return;
    }
    if (size < 0 || size > INSTALL_LIMIT)
        fail_install(strerror(size < 0 ? errno : EFBIG));
    close(fd);
    bool is_whole = strlen(text) == (size_t)size, has_socket = false;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "socket=/", 8) == 0) {
            agent_socket = line + 7;
            has_socket = true;
        }
        if (strncmp(line, "python=", 7) == 0 && line[7])
            python = line + 7;
        if (strncmp(line, "profile=", 8) == 0)
            profile = line + 8;
    }
    if (!is_whole || !has_socket)
        fail_install("it is damaged");
}

// ---- the agent
// What an agent has handed over: the generation of the call's row in the journal, in digits, and until when to look for
// the next agent.
static struct { char intent[CONTINUATION_SIZE + 1]; int64_t until; } handover;

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

static _Noreturn void fail_silent(const char *limit) {
    fail_unavailable(TEXT("the agent does not respond: it is stopped or hung: no sign of life within ", limit),
                     TEXT("let it go on (SIGCONT) or restart it, and repeat the call; socket ", agent_socket));
}

// The rest of the runtime's environment (proxies, credentials, loader settings) is none of a call's business.
static bool belongs_to_call(const char *entry) {
    return strncmp(entry, "TRACEPARENT=", 12) == 0 || (strncmp(entry, "CNI_", 4) == 0 && strchr(entry, '='));
}

// What comes before stdin. Returns where it ends.
static char *pack_environment(void) {
    const char *netns = variable("CNI_NETNS");
    request.netns = *netns ? open(netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;  // the agent judges what it is
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

static void pack_request(void) {
    input.data = pack_environment();
    read_netconf();
    uint32_t size = htole32((uint32_t)input.size);
    memcpy(request.data + INPUT_FIELD, &size, sizeof size);
    request.end = (size_t)(input.data + input.size - request.data);
}

static void use_first_layout(void) {
    magic = "SVC1";
    request.start = FIRST_LAYOUT;
    memcpy(request.data + FIRST_LAYOUT, magic, MAGIC_SIZE);
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

// Returns whether so much is there; it is not when the agent has closed the connection.
static bool receive(int fd, char *data, size_t least, size_t most, size_t *have, struct deadline deadline) {
    bool gives_signs = request.start == 0, is_short = verb->limit.ms < SILENCE.ms;
    int64_t silent = gives_signs ? now_ms() + SILENCE.ms : INT64_MAX;
    bool is_late = deadline.until < silent;
    int cause = read_some(fd, data, least, most, have, is_late ? deadline.until : silent);
    if (cause == ETIMEDOUT && gives_signs && (!is_late || is_short))
        fail_silent(is_late ? deadline.text : SILENCE.text);
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
    char *text = output.data + header_size;
    have -= header_size;
    if (size > sizeof output.data - header_size) {
        char *room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED)
            fail_agent("sent a reply for which there is no memory", "");
        text = memcpy(room, text, have);
    }
    require_received(receive(fd, text, size, size, &have, deadline));
    bool printed = print(STDOUT_FILENO, text, stdout_size);
    print(STDERR_FILENO, text + stdout_size, size - stdout_size);
    _exit(printed || reply.status ? (int)reply.status : 1);
}

static void take_over(int fd, size_t header_size, size_t have, int64_t ms, struct deadline deadline) {
    require_received(receive(fd, output.data, header_size + CONTINUATION_SIZE, sizeof output.data, &have, deadline));
    memcpy(handover.intent, output.data + header_size, CONTINUATION_SIZE);
    memcpy(request.data + PREFIX_SIZE, handover.intent, CONTINUATION_SIZE);
    handover.until = now_ms() + (ms < NEXT_AGENT_MS ? ms : NEXT_AGENT_MS);
}

// Returns true when the agent has handed the call over, false when it has closed the connection without a word.
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
        if (reply.status != ALIVE && (reply.status != PATIENCE || reply.stdout_size > INT32_MAX))
            print_reply(fd, reply, header_size, have, deadline);
        have -= header_size;
        memmove(output.data, output.data + header_size, have);
        if (reply.status == PATIENCE)
            deadline = (struct deadline){now_ms() + (int64_t)reply.stdout_size, "the time that it asked for"};
    }
}

// As await_reply.
static bool call_agent(int fd, int64_t started, const struct limit *send_limit) {
    int cause = send_request(fd, started + send_limit->ms);
    if (cause == ETIMEDOUT)
        fail_agent("did not take the call within ", send_limit->text);
    if (cause && cause != EPIPE && cause != ECONNRESET)  // these two: it may have refused the call, and said why
        fail_agent("cannot be told: ", strerror(cause));
    bool is_handed_over = await_reply(fd, started);
    close(fd);
    return is_handed_over;
}

// ---- the one-shot
// Its streams are files in memory: what was read of a pipe cannot be put back, and what it says is looked at first.
static int open_memory(const char *stream) {
    int fd = memfd_create(stream, MFD_CLOEXEC | 8U);  // MFD_NOEXEC_SEAL: some hosts insist, Linux before 6.3 refuses
    return fd < 0 && errno == EINVAL ? memfd_create(stream, MFD_CLOEXEC) : fd;
}

static bool restore_stdin(void) {
    int fd = open_memory("stdin");
    return fd >= 0 && print(fd, input.data, input.size) && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) == 0;
}

static const char SIGN[] = "svc\n";  // what svc.cni writes first: the end of another program is not taken for an answer

// `why` is the errno of the connection to the agent, or 0 for a test, which works without an agent.
static _Noreturn void fail_one_shot(const char *what, const char *cause, int why) {
    const char *record = *install_path ? install_path : "EXECUTABLE.install, which is missing";
    static const char REMEDY[] = "repeat `svcctl install` with a Python that has svc; it is recorded in ";
    if (why)
        fail_unavailable(TEXT("the agent is not running and ", python, what, cause),
                         TEXT("start the agent (", agent_socket, ": ", strerror(why), "), or ", REMEDY, record));
    fail_unavailable(TEXT(python, what, cause), TEXT(REMEDY, record));
}

struct text { char *data; size_t size; };

static struct text map(int fd) {
    off_t size = lseek(fd, 0, SEEK_END);
    char *data = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    return data == MAP_FAILED ? (struct text){"", 0} : (struct text){data, (size_t)size};
}

// A traceback's last line says what was wrong: it follows a colon.
static const char *last_line(struct text text) {
    static char line[200] = ": ";
    while (text.size > 0 && text.data[text.size - 1] == '\n')
        text.size--;
    size_t start = text.size;
    while (start > 0 && text.data[start - 1] != '\n')
        start--;
    size_t size = text.size - start;
    memcpy(line + 2, text.data + start, size < sizeof line - 2 ? size : sizeof line - 3);
    return size ? line : "";
}

// Returns whether the one-shot has begun with the sign.
static bool is_signed(struct text text) {
    return text.size >= sizeof SIGN - 1 && memcmp(text.data, SIGN, sizeof SIGN - 1) == 0;
}

// Returns the status of the one-shot at its end. Only a program without the sign is limited: the calls of svc limit themselves.
static int await_end(pid_t child, int out, sigset_t *ended, int why) {
    int64_t until = now_ms() + verb->limit.ms, left;
    int status, number = 0;
    while (number != SIGCHLD && (left = until - now_ms()) > 0)
        number = sigtimedwait(ended, NULL, &(struct timespec){left / 1000, left % 1000 * 1000000});
    if (number != SIGCHLD && !is_signed(map(out))) {
        kill(child, SIGKILL);
        fail_one_shot(" gave no sign of svc within ", verb->limit.text, why);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return status;
}

// Its answer and its exit status become those of the executable, unless it ends without an answer. An error needs no sign: it
// may be one of the start.
static _Noreturn void relay(int status, int out, int err, int why) {
    struct text answer = map(out), log = map(err);
    print(STDERR_FILENO, log.data, log.size);
    size_t sign = is_signed(answer) ? sizeof SIGN - 1 : 0;
    bool is_error = answer.size > 0 && answer.data[0] == '{' && WIFEXITED(status) && WEXITSTATUS(status) != 0;
    bool is_whole = sign > 0 && (answer.size > sign || verb->bit != ADD);
    if (!WIFEXITED(status) || !(is_error || is_whole))
        fail_one_shot(WIFEXITED(status) ? " ended without an answer" : " was killed", WIFEXITED(status) ? last_line(log) : "", why);
    _exit(print(STDOUT_FILENO, answer.data + sign, answer.size - sign) ? WEXITSTATUS(status) : 1);
}

// Returns in the child, which is killed when the executable is.
static void fork_one_shot(int why) {
    pid_t parent = getpid();
    sigset_t ended, before;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &ended, &before);
    int out = open_memory("stdout"), err = open_memory("stderr");
    pid_t child = out < 0 || err < 0 ? -1 : _Fork();
    if (child < 0)
        fail_one_shot(" cannot be run: ", strerror(errno), why);
    if (child > 0)
        relay(await_end(child, out, &ended, why), out, err, why);
    sigprocmask(SIG_SETMASK, &before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
        _exit(1);
}

// As `fail_one_shot`; a test reads stdin itself.
static _Noreturn void run_one_shot(int why) {
    static char beside[PATH_MAX + 16];
    strcpy(mempcpy(beside, place, directory_size), "python3");
    if (!python)
        python = directory_size && access(beside, X_OK) == 0 ? beside : "/usr/bin/python3";
    char *test = why ? NULL : "--test";
    char *option = *handover.intent ? "--intent" : test, *intent = *handover.intent ? handover.intent : NULL;
    char *arguments[] = {python, "-I", "-m", "svc.cni", "--signed", "--name", name, "--install", install_path, option, intent, NULL};
    char **kept = environ;
    for (char **entry = environ; *entry; entry++)
        if (belongs_to_call(*entry) || strncmp(*entry, "PATH=", 5) == 0 || strncmp(*entry, "HOME=", 5) == 0)
            *kept++ = *entry;
    *kept = NULL;
    fork_one_shot(why);
    if (test || restore_stdin())
        execve(python, arguments, environ);
    fail_one_shot(" cannot be run: ", strerror(errno), why);
}

int main(int argc, char **argv) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)  // else the agent's socket could become stdout
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            _exit(1);
    signal(SIGPIPE, SIG_IGN);
    name = program_invocation_short_name;
    const char *option = argc == 2 ? argv[1] : "";
    if (strcmp(option, "-v") == 0)
        finish(STDOUT_FILENO, 0, TEXT(SVC_VERSION "\n"));
    if (strcmp(option, "-t") == 0) {
        verb = VERBS;  // of another code than STATUS, should the test not even start
        read_install();
        run_one_shot(0);
    }
    if (!*variable("CNI_COMMAND"))
        finish(STDERR_FILENO, 0, TEXT(name, " " SVC_VERSION ": CNI plugin, spec versions " SPEC_VERSIONS(", ") "\n"));
    set_verb(variable("CNI_COMMAND"));
    require_variables();
    if (verb->bit == VERSION)
        finish(STDOUT_FILENO, 0, TEXT("{\"cniVersion\":\"", cni_version(), "\",\"supportedVersions\":[\""
                                      SPEC_VERSIONS("\",\"") "\"]}\n"));
    read_install();
    pack_request();
    const struct limit *send_limit = verb->limit.ms < SEND_WAIT.ms ? &verb->limit : &SEND_WAIT;
    for (;;) {
        int64_t started = now_ms();
        int fd = connect_agent(send_limit->ms), cause = errno;
        bool is_handed_over = fd >= 0 && call_agent(fd, started, send_limit);
        if (fd < 0 && cause == EAGAIN)
            fail_agent("did not accept the call within ", send_limit->text);
        if (!is_handed_over && request.start)  // closed, or gone, when it was asked in the layout of the last release
            require_received(false);
        if (fd >= 0 && !is_handed_over)
            use_first_layout();
        else if (fd < 0 && now_ms() >= handover.until)
            run_one_shot(cause);
        else
            poll(NULL, 0, LOOK_MS);
    }
}
