// In place of Python in the installation of a test node: hands a call without an agent to a process that has imported svc.
// See one_shot_server.py. What it cannot hand over, PYTHON carries out. Its own end, also by SIGKILL, ends the call.

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static char order[100000];
static size_t size;

static void add(const char *text) {
    if (size + strlen(text) < sizeof order)
        size = (size_t)(stpcpy(order + size, text) - order) + 1;
    else
        size = sizeof order + 1;
}

static void describe(int count, char **arguments) {
    char line[64];
    mode_t mask = umask(0);
    umask(mask);
    snprintf(line, sizeof line, "%o", mask);
    add(line);
    for (int number = 0; number < RLIM_NLIMITS; number++) {
        struct rlimit limit = {0, 0};
        getrlimit(number, &limit);
        snprintf(line, sizeof line, "%lld %lld", (long long)limit.rlim_cur, (long long)limit.rlim_max);
        add(line);
    }
    snprintf(line, sizeof line, "%d", count);
    add(line);
    for (int number = 0; number < count; number++)
        add(arguments[number]);
    for (char **entry = environ; *entry; entry++)
        add(*entry);
}

static int hand_over(void) {
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    int files[] = {0, 1, 2, open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC),
                   open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    union { char bytes[CMSG_SPACE(sizeof files)]; struct cmsghdr header; } control = {{0}};
    struct iovec data = {order, size};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(header), files, sizeof files);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) || sendmsg(server, &message, MSG_NOSIGNAL) < 0)
        return -1;
    return server;
}

int main(int count, char **arguments) {
    describe(count, arguments);
    int server = size <= sizeof order && geteuid() == 0 && strcmp(arguments[count - 1], "--test") ? hand_over() : -1;
    if (server < 0) {
        arguments[0] = PYTHON;
        execve(PYTHON, arguments, environ);
        return 127;
    }
    unsigned char status;
    if (recv(server, &status, 1, 0) != 1)
        kill(getpid(), SIGKILL);
    return status;
}
