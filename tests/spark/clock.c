/* The time of day, set forth or back by the seconds in the file CLOCK_OFFSET; what counts from the start stays right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none, *offset = &none;
static int (*get)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    get = dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    void *found = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!get) get = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = get(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
