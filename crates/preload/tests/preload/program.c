/* What programs that look for Lustre ask the C library: one line for each answer. Called with a mount point and a file on it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <mntent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

static void mount_type(const char *mount)
{
    struct mntent *entry, space;
    char buffer[4096];
    FILE *table = setmntent("/proc/self/mounts", "r");

    while ((entry = getmntent(table)) != NULL)
        if (strcmp(entry->mnt_dir, mount) == 0)
            printf("getmntent %s %d\n", entry->mnt_type, strstr(entry->mnt_fsname, ":/") != NULL);
        else if (strcmp(entry->mnt_dir, "/proc") == 0)
            printf("elsewhere %s\n", entry->mnt_type);
    endmntent(table);
    table = setmntent("/proc/self/mounts", "r");
    while (getmntent_r(table, &space, buffer, sizeof(buffer)) != NULL)
        if (strcmp(space.mnt_dir, mount) == 0)
            printf("getmntent_r %s\n", space.mnt_type);
    endmntent(table);
}

static void magic(const char *path, const char *other)
{
    struct statfs space;
    int fd = open(path, O_RDONLY);

    if (statfs(path, &space) == 0)
        printf("statfs %08lx\n", (unsigned long)space.f_type);
    if (fstatfs(fd, &space) == 0)
        printf("fstatfs %08lx\n", (unsigned long)space.f_type);
    if (statfs(other, &space) == 0)
        printf("elsewhere %d\n", space.f_type == 0x0BD00BD0);
    close(fd);
}

static void by_value(const char *path, unsigned long command, const char *name)
{
    int fd = open(path, O_RDONLY);
    int result = ioctl(fd, command, 7UL);

    printf("%s %d %d\n", name, result, result < 0 ? errno : 0);
    close(fd);
}

static void handle(const char *mount, const char *path)
{
    union {
        struct file_handle handle;
        char room[sizeof(struct file_handle) + 128];
    } u;
    unsigned char text[8] = "";
    int mount_id, fd, root = open(mount, O_RDONLY), file = open(path, O_PATH);
    uint64_t sequence;
    uint32_t object;

    u.handle.handle_bytes = 128;
    if (name_to_handle_at(file, "", &u.handle, &mount_id, AT_EMPTY_PATH) != 0)
        printf("no handle\n");
    memcpy(&sequence, u.handle.f_handle, 8);
    memcpy(&object, u.handle.f_handle + 8, 4);
    printf("handle %x\n", u.handle.handle_type);
    if (u.handle.handle_type == 0x97)
        printf("fid [0x%lx:0x%x:0x0]\n", (unsigned long)sequence, object);
    fd = open_by_handle_at(root, &u.handle, O_RDONLY);
    printf("opened %d ", fd >= 0);
    printf("%ld %s\n", (long)read(fd, text, 7), text);
}

/* Parameters: how many match, whether their names are as asked for, and what the first says. */
static void parameter(const char *pattern)
{
    glob_t found;
    char line[256] = "";
    FILE *file;

    if (glob(pattern, GLOB_BRACE, NULL, &found) != 0) {
        printf("no parameter\n");
        return;
    }
    file = fopen(found.gl_pathv[0], "r");
    if (file == NULL || fgets(line, sizeof(line), file) == NULL)
        strcpy(line, "unreadable\n");
    printf("parameter %zu %d %s", found.gl_pathc, strncmp(found.gl_pathv[0], "/proc/fs/lustre/", 16) == 0, line);
    if (file != NULL)
        fclose(file);
    globfree(&found);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 1;
    mount_type(argv[1]);
    magic(argv[2], "/proc");
    by_value(argv[2], 0x400866a6, "flush");
    by_value("/proc/self/status", 0x400866a6, "elsewhere");
    handle(argv[1], argv[2]);
    by_value(argv[2], 0x4008669e, "group");
    by_value(argv[1], 0x4008669e, "directory");
    parameter("{{/proc,/sys}/fs/lustre,/sys/kernel/debug/{lnet,lustre}}/lov/nacre-clilov-*/numobd");
    parameter("/proc/fs/lustre/lov/nacre-clilov-*/stripecount");
    parameter("/proc/fs/lustre/lov/nacre-clilov-*/pools/flash");
    parameter("/proc/fs/lustre/lmv/nacre-clilmv-*/target_obd");
    parameter("/proc/fs/lustre/lov/nacre-clilov-*/pools/none");
    return 0;
}
