/* The twin of hycom.f90 for machines without gfortran: the same arguments and output, and on the files the system calls that
   libgfortran makes for records of at least 128 KiB, the size of its buffer: each record is one call, fstat follows open, and
   lseek comes only before a record that does not follow the last one. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_WORDS 4096
#define NO_DATA 0x1p100f
/* Linux moves no more than this in one call. */
#define CALL_BYTES_MAX 0x7ffff000

struct timer {
    int calls;
    double total, longest;
};

static struct timer opens, records, closes;
static float *field;
static size_t words, points;
static int descriptor;
static off_t position;

static void fail(const char *what)
{
    fprintf(stderr, "hycom: cannot %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void count_call(struct timer *timer, double start)
{
    double seconds = now() - start;
    timer->calls++;
    timer->total += seconds;
    if (seconds > timer->longest)
        timer->longest = seconds;
}

static void open_file(int is_write, const char *directory, int which)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/archv%d.a", directory, which);
    double start = now();
    descriptor = open(path, is_write ? O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0)
        fail("open a file");
    count_call(&opens, start);
    position = 0;
}

static void transfer(int is_write, int record)
{
    size_t bytes = words * sizeof *field, done = 0;
    off_t offset = (off_t)(record - 1) * (off_t)bytes;
    double start = now();
    if (offset != position && lseek(descriptor, offset, SEEK_SET) != offset)
        fail("seek");
    while (done < bytes) {
        size_t part = bytes - done < CALL_BYTES_MAX ? bytes - done : CALL_BYTES_MAX;
        char *from = (char *)field + done;
        ssize_t count = is_write ? write(descriptor, from, part) : read(descriptor, from, part);
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            errno = EIO; /* The file is shorter than it should be. */
        if (count <= 0)
            fail(is_write ? "write a record" : "read a record");
        done += (size_t)count;
    }
    count_call(&records, start);
    position = offset + (off_t)bytes;
}

static void close_file(int is_write, int sync)
{
    double start = now();
    if (is_write && sync && fsync(descriptor) != 0)
        fail("fsync");
    if (close(descriptor) != 0)
        fail("close");
    count_call(&closes, start);
}

static float value_at(int record, size_t i)
{
    return (float)(record % 8192) + (float)(i % 1024) / 1024;
}

static void fill(int record)
{
    for (size_t i = 0; i < words; i++)
        field[i] = i < points ? value_at(record, i + 1) : NO_DATA;
}

static void compare(int record)
{
    for (size_t i = 0; i < words; i++)
        if (field[i] != (i < points ? value_at(record, i + 1) : NO_DATA)) {
            fprintf(stderr, "hycom: a record that was read is not what was written\n");
            exit(1);
        }
}

static void show(const char *name, const struct timer *timer)
{
    double each = timer->total / (timer->calls > 0 ? timer->calls : 1);
    printf("     %s   calls =%9d   time =%14.8f   time/call =%14.8f   longest =%14.8f\n", name, timer->calls,
           timer->total, each, timer->longest);
}

int main(int count, char **arguments)
{
    if (count != 8) {
        fprintf(stderr, "usage: hycom write|read DIRECTORY IDM JDM CALLS FIELDS SYNC\n");
        return 2;
    }
    int is_write = strcmp(arguments[1], "write") == 0;
    points = (size_t)atol(arguments[3]) * (size_t)atol(arguments[4]);
    int calls = atoi(arguments[5]), fields = atoi(arguments[6]), sync = atoi(arguments[7]);
    words = (points + BLOCK_WORDS - 1) / BLOCK_WORDS * BLOCK_WORDS;
    field = malloc(words * sizeof *field);
    if (field == NULL)
        fail("allocate a field");
    for (int i = 0; i < calls; i++) {
        int record = i % fields + 1;
        if (i == 0 || (is_write && record == 1)) {
            if (i > 0)
                close_file(is_write, sync);
            open_file(is_write, arguments[2], i / fields % 2 + 1);
        }
        if (is_write)
            fill(record);
        transfer(is_write, record);
        if (!is_write)
            compare(record);
    }
    close_file(is_write, sync);
    show("zaiopn", &opens);
    show(is_write ? "zaiowr" : "zaiord", &records);
    show("zaiocl", &closes);
    return 0;
}
