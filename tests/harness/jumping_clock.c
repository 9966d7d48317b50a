/* A wall clock that jumps, for LD_PRELOAD. CLOCK_FILE names a file with three 64-bit integers: seconds that are added to the time
   of each even and of each odd reading, and the number of readings, which this program counts. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shared;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("CLOCK_FILE");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) abort();
    void *found = mmap(NULL, 3 * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) abort();
    shared = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && shared && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shared[__sync_fetch_and_add(&shared[2], 1) & 1];
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (result) *result = found.tv_sec;
    return found.tv_sec;
}
