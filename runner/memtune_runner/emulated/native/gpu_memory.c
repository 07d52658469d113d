/* The memory of the node's GPUs over all processes of a run: what each has taken, and whether more fits. Each process
 * has an account in a table that they share. */
#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

/* That use GPUs at the same time; a process that has ended makes room for another. */
#define MOST_PROCESSES 1024

struct account {
    size_t used, peak;
    size_t others, beside; /* the most that all others had at one time, with their contexts: ever, and since it is there */
    int has_context;
};

static struct table {
    int users[MOST_GPUS];       /* processes that have used a GPU so far */
    size_t together[MOST_GPUS]; /* the most that all had at one time, with the contexts of all but one */
    pid_t pids[MOST_PROCESSES];
    struct account accounts[MOST_PROCESSES][MOST_GPUS];
} *table;
static int file = -1;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct account *own;                      /* of this process, one for each GPU; NULL if the table is full */
static struct account *living[MOST_PROCESSES];   /* of a GPU, as of the last look */
static pid_t pids[MOST_PROCESSES];
static int count;

static void raise_to(size_t *most, size_t size) {
    if (*most < size) *most = size;
}

/* Whether a process has ended, also where its parent has not asked for its exit code yet. */
static int is_gone(pid_t pid) {
    char text[128] = "";
    snprintf(text, sizeof text, "/proc/%d/stat", pid);
    int stat = open(text, O_RDONLY | O_CLOEXEC);
    if (stat < 0) return errno == ENOENT;
    ssize_t size = read(stat, text, sizeof text - 1);
    close(stat);
    if (size <= 0) return 1;
    text[size] = 0;
    const char *state = strrchr(text, ')'); /* behind the program's name */
    return state && strchr("ZX", state[2]);
}

/* Maps the table, or one for this process alone where nobody has made it one to share. */
static void open_table(void) {
    const char *path = getenv("MEMTUNE_EMULATED_PROCESSES");
    if (table) munmap(table, sizeof *table);
    if (file >= 0) close(file); /* a parent's, which may hold its lock */
    file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0 && ftruncate(file, sizeof *table)) close(file), file = -1;
    if (path && file < 0) perror("memtune: emulated GPU: what this process takes is in no result");
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file,
                 0);
    if (table == MAP_FAILED) perror("memtune: emulated GPU"), abort();
}

/* Takes a place in the table; a fork has none of its parent's memory. */
static void open_account(void) {
    owner = getpid(), own = NULL;
    for (int place = 0; place < MOST_PROCESSES && !own; place++) {
        pid_t before = table->pids[place];
        if (before && before != owner && !is_gone(before)) continue;
        table->pids[place] = owner;
        own = memset(table->accounts[place], 0, sizeof table->accounts[place]);
    }
}

/* Between these two, no other thread and no other process uses the table. */
static void begin(void) {
    pthread_mutex_lock(&lock);
    int is_new = owner != getpid();
    if (is_new) open_table();
    while (file >= 0 && flock(file, LOCK_EX) && errno == EINTR) {}
    if (is_new) open_account();
}
static void end(void) {
    if (file >= 0) flock(file, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

/* In a fork, the thread that had locked is not there. */
static void unlock(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
__attribute__((constructor)) static void unlock_in_forks(void) { pthread_atfork(NULL, NULL, unlock); }

/* Finds the processes that use a GPU, and returns what they have, each with a context. */
static size_t look(int index) {
    size_t sum = 0;
    count = 0;
    for (int place = 0; place < MOST_PROCESSES && table->pids[place]; place++) {
        struct account *account = &table->accounts[place][index];
        if (!account->has_context || (table->pids[place] != owner && is_gone(table->pids[place]))) continue;
        pids[count] = table->pids[place], living[count++] = account;
        sum += account->used + gpu.context;
    }
    return sum;
}

/* What all have, with the contexts of all but one, which lies in what is outside in any case. */
static size_t taken(int index) {
    size_t sum = look(index);
    return sum ? sum - gpu.context : 0;
}

static int take(struct account *account, int index, size_t size) {
    if (!account->has_context) {
        account->beside = look(index);
        if (table->users[index]++) account->others = table->together[index] + gpu.context;
        account->has_context = 1; /* which it keeps if it finds no memory */
    }
    size_t before = taken(index);
    int fits = size <= gpu.total && before + size + gpu.outside <= gpu.total;
    if (fits) account->used += size, before += size;
    raise_to(&account->peak, account->used);
    raise_to(&table->together[index], before);
    for (int place = 0; place < count; place++) {
        struct account *other = living[place];
        if (other == account) continue;
        size_t beside = before - other->used;
        raise_to(&other->others, beside), raise_to(&other->beside, beside);
    }
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

int process_take(int index, size_t size) {
    begin();
    int code = own ? take(&own[index], index, size) : OUT_OF_MEMORY;
    end();
    return code;
}

void process_give(int index, size_t size) {
    begin();
    /* A fork may free what its parent has taken. */
    if (own) own[index].used -= size < own[index].used ? size : own[index].used;
    end();
}

size_t gpu_free_bytes(int index) {
    begin();
    size_t all = taken(index) + gpu.outside;
    end();
    return all < gpu.total ? gpu.total - all : 0;
}

/* The next process in the table that uses a GPU and what it has, without what is outside of a single one; returns the
 * place behind it, 0 at the end. */
int next_user(int index, int place, int *pid, size_t *used) {
    begin();
    look(index);
    int is_there = place < count;
    if (is_there) *pid = pids[place], *used = living[place]->used + (*pid == owner ? gpu.outside : gpu.context);
    end();
    return is_there ? place + 1 : 0;
}

/* What the report asks for: of a GPU that the process sees, and of one of the node. */
size_t emulated_used_peak(int device) {
    begin();
    size_t peak = own ? own[gpu_of(device)].peak : 0;
    end();
    return peak;
}

/* How much more others had at most, while this process used the GPU, than they have now. */
size_t emulated_others_left(int device) {
    int index = gpu_of(device);
    begin();
    size_t left = 0;
    if (own && own[index].has_context) {
        size_t now = look(index) - own[index].used - gpu.context;
        left = now < own[index].beside ? own[index].beside - now : 0;
    }
    end();
    return left;
}

/* The most that others had, that all had at one time, and that all would have if the peaks of both met: the first with
 * a context each, the others with the contexts of all but one. Returns how many others there were. */
int emulated_others(int index, size_t *others, size_t *together, size_t *upper) {
    begin();
    struct account account = own ? own[index] : (struct account){0};
    *together = table->together[index];
    *others = account.has_context ? account.others : *together ? *together + gpu.context : 0;
    *upper = account.has_context ? account.peak + account.others : *together;
    int users = table->users[index] - account.has_context;
    end();
    return users;
}
