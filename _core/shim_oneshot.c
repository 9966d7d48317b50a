// The one-shot: a Python process that serves the call if no agent runs. It is killed if the executable is.

#include "shim.h"

// Its streams are files in memory: it needs stdin again, of which a pipe has nothing left, and its output is checked first.
static int open_memory(const char *stream) {
    int fd = memfd_create(stream, MFD_CLOEXEC | 8U);  // MFD_NOEXEC_SEAL: some hosts insist, Linux before 6.3 refuses
    return fd < 0 && errno == EINVAL ? memfd_create(stream, MFD_CLOEXEC) : fd;
}

static bool restore_stdin(void) {
    int fd = open_memory("stdin");
    return fd >= 0 && print(fd, input.data, input.size) && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) == 0;
}

static const char SIGN[] = "svc\n";  // what svc.cni writes first, so that the end of another program is not taken for an answer

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

// The last line of a traceback names the error; it is returned after a colon.
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

// Prints its answer and exits with its status, unless it ended without an answer. An error needs no sign: the start may have
// failed.
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
    set_signal(SIGCHLD, SIG_DFL);
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

// Replaces the child by Python. A test reads stdin itself.
_Noreturn void run_one_shot(int why) {
    static char beside[PATH_MAX + sizeof "python3"];
    strcpy(mempcpy(beside, place, directory_size), "python3");
    if (!python)
        python = directory_size && access(beside, X_OK) == 0 ? beside : "/usr/bin/python3";
    char *test = why ? NULL : "--test";
    char *option = *handover_intent ? "--intent" : test, *intent = *handover_intent ? handover_intent : NULL;
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
