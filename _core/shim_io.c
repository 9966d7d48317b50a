// Reads and writes with a deadline, and the one CNI error object of a failure.

#include "shim.h"

enum { VERSION_LIMIT = 16, SHOWN_LIMIT = 5000 };  // bytes
static const struct limit OUTPUT_WAIT = SECONDS(10);
static const int64_t OPTIONAL_INPUT_MS = 50;  // VERSION and refused calls need no stdin: a runtime may send nothing

struct output output;

// ---- waiting, reading, writing
// These three are system calls because the functions of musl, which also serve other kernels, have 2 KB.
int64_t now_ns(int clock) {
    struct timespec now = {0};
    syscall(SYS_clock_gettime, clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void set_signal(int number, void (*handler)(int)) {
    const struct { void (*handler)(int); unsigned long rest[7]; } action = {.handler = handler};
    syscall(SYS_rt_sigaction, number, &action, NULL, _NSIG / 8);
}

int look_at(int folder, const char *path, int flags, struct stat *found) {
    return (int)syscall(SYS_newfstatat, folder, path, found, flags);
}

int64_t now_ms(void) {
    return now_ns(CLOCK_MONOTONIC) / 1000000;
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
int read_some(int fd, char *data, size_t least, size_t most, size_t *have, int64_t until) {
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

// A pipe or socket that is ready takes PIPE_BUF bytes without blocking, so the deadline holds if the peer does not read.
int write_all(int fd, const char *data, size_t size, int64_t until) {
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

bool print(int fd, const char *data, size_t size) {
    return write_all(fd, data, size, now_ms() + OUTPUT_WAIT.ms) == 0;
}

static void put(const char *const *pieces) {
    for (; *pieces; pieces++) {
        size_t size = strnlen(*pieces, sizeof output.data - output.size);
        memcpy(output.data + output.size, *pieces, size);
        output.size += size;
    }
}

_Noreturn void finish(int fd, int status, const char *const *last_pieces) {
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
const char *cni_version(void) {
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

_Noreturn void fail(const char *code, const char *const *msg, const char *const *details) {
    put(TEXT("{\"cniVersion\":\"", cni_version(), "\",\"code\":", code, ",\"msg\":\""));
    put_json(msg);
    put(TEXT("\",\"details\":\""));
    put_json(details);
    finish(STDOUT_FILENO, 1, TEXT("\"}\n"));
}

// A STATUS that cannot be served has a code of its own.
_Noreturn void fail_unavailable(const char *const *msg, const char *const *details) {
    if (is_spooled)  // the next agent does it
        finish(STDOUT_FILENO, 0, TEXT(NULL));
    fail(verb->bit == STATUS ? NOT_AVAILABLE : IO_FAILURE, msg, details);
}
