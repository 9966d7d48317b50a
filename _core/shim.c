// svc: what a container runtime executes for every CNI call. It hands the call to the resident agent over a unix socket
// and prints the agent's reply. Without an agent it runs a one-shot Python process that does the same, or, if its record has
// `wait=`, waits for an agent and leaves a DEL in the spool.
//
// Rules:
// 1. Every wait has a deadline: runtimes hold locks while a plugin runs.
// 2. No JSON is parsed: a scan finds "cniVersion", and the agent reads the rest of the network configuration.
// 3. No stdio, no malloc: it starts in 0.1 ms, most of which is page faults. So the data of a call is close together, and the
//    reply is read into the buffer of error messages.
//    For the same reason musl's larger functions are avoided: `openat` is one system call, and `open` is more.
// 4. A failure is one CNI error object on stdout and exit status 1, also if the one-shot ends without any.

#include "shim.h"

static const struct verb VERBS[] = {
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

char *name;
const struct verb *verb;

// ---- the call
char *variable(const char *key) {
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
        fail(BAD_ENVIRONMENT, msg, TEXT("the container runtime sets what ", verb->name, " needs"));
}

// The agent gets nothing else of the runtime's environment: no proxies, credentials or loader settings.
bool belongs_to_call(const char *entry) {
    return strncmp(entry, "TRACEPARENT=", 12) == 0 || (strncmp(entry, "CNI_", 4) == 0 && strchr(entry, '='));
}

// ---- the installation
char *agent_socket = "/var/run/svc/agent.sock", *state_dir = "/var/lib/svc", *profile = "", *python;
struct limit agent_wait;
char place[PATH_MAX + 16 + INSTALL_LIMIT + 4];
size_t directory_size;
char *install_path = place;

static _Noreturn void fail_install(const char *cause) {
    fail_unavailable(TEXT("cannot use ", place, ": ", cause),
                     TEXT("repeat `svcctl install`"));
}

// The record is beside the executable and has its name, so several installations can share a directory. An executable of
// svc* without a record of its own takes svc.install. Returns it open, or -1 with the errno of open.
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
    int fd = openat(AT_FDCWD, place, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    if (strncmp(place + directory_size, "svc", 3) != 0)  // it has the names of another profile
        fail_install(strerror(errno));
    strcpy(place + directory_size, "svc.install");
    return openat(AT_FDCWD, place, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// Returns whether the text is a number of seconds that an agent may be waited for.
static bool set_wait(const char *text) {
    enum { MOST = 600, DIGITS = 3 };
    static char shown[DIGITS + sizeof " s"];
    size_t size = strspn(text, "0123456789");
    int64_t seconds = 0;
    for (size_t i = 0; i < size && i <= DIGITS; i++)
        seconds = seconds * 10 + text[i] - '0';
    if (size == 0 || size > DIGITS || text[size] || seconds > MOST)
        return false;
    stpcpy(stpcpy(shown, text), " s");
    agent_wait = (struct limit){seconds * SECOND_MS, shown};
    return true;
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
    bool is_whole = false, has_socket = false, is_valid = true;
    for (char *line = text, *next; *line; line = next) {
        next = strchrnul(line, '\n');
        if (*next)
            *next++ = '\0';
        if (strncmp(line, "socket=/", 8) == 0) {
            agent_socket = line + 7;
            has_socket = true;
        }
        if (strncmp(line, "python=", 7) == 0 && line[7])
            python = line + 7;
        if (strncmp(line, "profile=", 8) == 0)
            profile = line + 8;
        if (strncmp(line, "state_dir=/", 11) == 0)
            state_dir = line + 10;
        if (strncmp(line, "wait=", 5) == 0)
            is_valid = set_wait(line + 5);
        // the last line, or one that follows all of these in a record of an earlier build, which has no `wait`
        if (memcmp(line, "end=", 4) == 0 || (memcmp(line, "file", 4) == 0 && !agent_wait.text))
            is_whole = true;
    }
    if (!is_whole || !has_socket || !is_valid)
        fail_install("it is damaged");
}

int main(int argc, char **argv) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)  // else the agent's socket could become stdout
        if (dup2(fd, fd) < 0 && openat(AT_FDCWD, "/dev/null", O_RDWR) != fd)
            _exit(1);
    set_signal(SIGPIPE, SIG_IGN);
    name = program_invocation_short_name;
    const char *option = argc == 2 ? argv[1] : "";
    if (strcmp(option, "-v") == 0)
        finish(STDOUT_FILENO, 0, TEXT(SVC_VERSION "\n"));
    if (strcmp(option, "-t") == 0) {
        verb = VERBS;  // its error code is that of any verb but STATUS
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
    if (agent_wait.ms)
        call_expected_agent();
    run_one_shot(call_agent());
}
