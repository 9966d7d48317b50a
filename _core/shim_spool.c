// The spool: the request of a DEL that no agent accepted, as a file in the state directory. The next agent carries it out.

#include "shim.h"

#include <dirent.h>
#include <stdio.h>  // renameat

enum { MAX_FILES = 4096, MAX_BYTES = 64 << 20, DIGITS = 16 };
static const int64_t WRITE_MS = 10 * SECOND_MS;

// The header of a file, little-endian; the request follows. svc/cni/spool_file.py reads it.
struct header {
    char magic[4];
    uint32_t version;
    char boot_id[36];
    uint32_t size;         // of the request
    uint64_t nanoseconds;  // of the boot's clock, which goes on in a suspended machine
    uint64_t checksum;     // the CRC-32 of what precedes it and of the request
};
_Static_assert(sizeof(struct header) == 64, "the header has no padding");

bool is_spooled;
static int folder;
static char file[DIGITS + 1], draft[1 + DIGITS + 1] = ".";

uint64_t hash_of(uint64_t hash, const void *data, size_t size) {  // FNV-1a
    for (const unsigned char *p = data, *end = p + size; p < end; p++)
        hash = (hash ^ *p) * 0x100000001b3;
    return hash;
}

static uint32_t crc_of(uint32_t crc, const void *data, size_t size) {
    crc = ~crc;
    for (const unsigned char *p = data, *end = p + size; p < end; p++) {
        crc ^= *p;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320 & -(crc & 1));
    }
    return ~crc;
}

static void put_digits(char *text, uint64_t number) {
    for (size_t i = DIGITS; i-- > 0; number >>= 4)
        text[i] = "0123456789abcdef"[number & 15];
}

static _Noreturn void fail_spool(const char *code, const char *cause, const char *remedy) {
    if (draft[1])
        unlinkat(folder, draft, 0);
    fail(code, TEXT("no agent has accepted the DEL, and it cannot be left in ", state_dir, "/spool: ", cause),
         TEXT(remedy, "; socket ", agent_socket));
}

static _Noreturn void fail_write(void) {
    fail_spool(IO_FAILURE, strerror(errno), "start the agent, or let root write there");
}

static uint64_t hash_text(uint64_t hash, const char *text) {
    return hash_of(hash, text, strlen(text) + 1);
}

// The hash of the value of "name" in the outermost object, as it is written there.
static uint64_t hash_network(uint64_t hash) {
    static const char KEY[] = "name";
    int depth = 0;
    bool is_next = false;
    input.data[input.size] = '\0';
    for (const char *p = input.data, *start; *p; p++) {
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        if (*p != '"')
            continue;
        for (start = ++p; *p && *p != '"'; p++)
            p += *p == '\\' && p[1];
        size_t size = (size_t)(p - start);
        if (is_next)
            return hash_of(hash, start, size);
        if (!*p)
            break;
        is_next = depth == 1 && size == sizeof KEY - 1 && memcmp(start, KEY, size) == 0 && p[1 + strspn(p + 1, " \t\r\n")] == ':';
    }
    return hash;
}

static void name_file(void) {
    uint64_t hash = hash_text(hash_network(hash_text(HASH_BEGIN, profile)), "");
    put_digits(file, hash_text(hash_text(hash, variable("CNI_CONTAINERID")), variable("CNI_IFNAME")));
    int64_t own[] = {now_ns(CLOCK_REALTIME), getpid()};
    put_digits(draft + 1, hash_of(HASH_BEGIN, own, sizeof own));
}

// Opens the directory, and creates it if it is missing. A directory to which other users have access is refused.
static void open_folder(void) {
    static const char NAME[] = "spool";
    struct stat found;
    int state = openat(AT_FDCWD, state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0 || (mkdirat(state, NAME, 0700) < 0 && errno != EEXIST))
        fail_write();
    folder = openat(state, NAME, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || look_at(folder, "", AT_EMPTY_PATH, &found) < 0)
        fail_write();
    if (found.st_uid != geteuid() || found.st_mode & 077)
        fail_spool(IO_FAILURE, "other users have access to it", "look for strange files in it, then chown root and chmod 0700 it");
}

// Counts the files with the draft, but neither the file that it replaces nor those with longer names, which an agent has set aside.
static bool is_full(void) {
    int64_t files = 0, bytes = 0, size;
    struct stat found;
    while ((size = syscall(SYS_getdents64, folder, output.data, sizeof output.data)) > 0)
        for (char *p = output.data; p < output.data + size; p += ((struct dirent *)p)->d_reclen) {
            const char *name = ((struct dirent *)p)->d_name;
            if (strlen(name) >= sizeof draft || strcmp(name, file) == 0)
                continue;
            if (look_at(folder, name, AT_SYMLINK_NOFOLLOW, &found) == 0 && S_ISREG(found.st_mode)) {
                files++;
                bytes += found.st_size;
            }
        }
    if (size < 0)
        fail_write();
    return files > MAX_FILES || bytes > MAX_BYTES;
}

static void write_draft(const char *data, size_t size) {
    struct header header = {.magic = {'S', 'V', 'C', 'S'}, .version = htole32(1), .size = htole32((uint32_t)size)};
    int boot = openat(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (read(boot, header.boot_id, sizeof header.boot_id) != sizeof header.boot_id)
        fail_write();
    header.nanoseconds = htole64((uint64_t)now_ns(CLOCK_BOOTTIME));
    header.checksum = htole64(crc_of(crc_of(0, &header, offsetof(struct header, checksum)), data, size));
    int fd = openat(folder, draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), cause;
    if (fd < 0)
        fail_write();
    int64_t until = now_ms() + WRITE_MS;
    if ((cause = write_all(fd, (char *)&header, sizeof header, until)) || (cause = write_all(fd, data, size, until)))
        errno = cause;
    else
        cause = fsync(fd);
    if (cause)
        fail_write();
}

void spool(const char *data, size_t size) {
    open_folder();
    name_file();
    write_draft(data, size);
    if (is_full())
        fail_spool(TRY_LATER, "it has 4096 files or 64 MiB", "start the agent, which empties it, and repeat the call");
    if (renameat(folder, draft, folder, file) < 0)
        fail_write();
    draft[1] = '\0';
    if (fsync(folder) < 0)
        fail_write();
    is_spooled = true;
}

void remove_from_spool(void) {
    unlinkat(folder, file, 0);
}
