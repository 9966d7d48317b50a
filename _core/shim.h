// What the files of the executable share: limits, the call that is being served, and the functions of each file.

#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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
    INSTALL_LIMIT = 4 << 10, CONTINUATION_SIZE = 20,
};

struct limit { int64_t ms; const char *text; };
#define SECONDS(n) {(n) * SECOND_MS, #n " s"}

enum { ADD = 1, DEL = 2, CHECK = 4, GC = 8, STATUS = 16, VERSION = 32 };
struct verb { const char *name; unsigned bit; struct limit limit; };

static const char BAD_ENVIRONMENT[] = "4", IO_FAILURE[] = "5", BAD_CONFIG[] = "7", TRY_LATER[] = "11",
    NOT_AVAILABLE[] = "50";  // CNI codes

// ---- shim.c: the call and the installation
extern char *name;  // as called, without directories: "svc", "svc-ipam", or what it is installed as
extern const struct verb *verb;
extern char *agent_socket, *state_dir, *profile, *python;  // python is NULL if it is not recorded
extern struct limit agent_wait;                // until when an agent is expected, in place of a one-shot; 0: a one-shot runs
extern char *install_path;                     // "" if the record does not exist
extern size_t directory_size;                  // of the directory in the path of the record; 0: not known
extern char place[];                           // the path of the record, then its text

char *variable(const char *key);      // "" if it is not set
bool belongs_to_call(const char *entry);

// ---- shim_io.c: bounded reads and writes, CNI errors
extern struct output { size_t size; char data[64 << 10]; } output;  // has room for two shown paths, escaped

int64_t now_ns(int clock);
int64_t now_ms(void);
void set_signal(int number, void (*handler)(int));
int look_at(int folder, const char *path, int flags, struct stat *found);  // as fstatat
int read_some(int fd, char *data, size_t least, size_t most, size_t *have, int64_t until);
int write_all(int fd, const char *data, size_t size, int64_t until);
bool print(int fd, const char *data, size_t size);
const char *cni_version(void);
_Noreturn void finish(int fd, int status, const char *const *last_pieces);
_Noreturn void fail(const char *code, const char *const *msg, const char *const *details);
_Noreturn void fail_unavailable(const char *const *msg, const char *const *details);

// ---- shim_agent.c: requests to the agent and its replies
extern struct input { size_t size; char *data; } input;  // stdin, read to the place in the request that it is sent from
extern char handover_intent[CONTINUATION_SIZE + 1];  // after a handover: the generation of the journal row, in digits

void pack_request(void);  // reads stdin
int call_agent(void);     // exits with the agent's reply, or returns the errno of the last connection
_Noreturn void call_expected_agent(void);  // with `agent_wait`, in place of both call_agent and a one-shot

// ---- shim_oneshot.c
_Noreturn void run_one_shot(int why);  // `why` is the errno of the connection to the agent, or 0 for a test

// ---- shim_spool.c: a DEL as a file for the next agent
extern bool is_spooled;

uint64_t hash_of(uint64_t hash, const void *data, size_t size);  // `hash`: of the data before, HASH_BEGIN at first
#define HASH_BEGIN 0xcbf29ce484222325
void spool(const char *data, size_t size);  // fails with a CNI error if the file is not there durably
void remove_from_spool(void);
