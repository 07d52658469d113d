/* What the processes of a run take of the node's GPUs: each has an account in a table that they share. */
#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static struct account *own;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void raise_to(size_t *most, size_t size) {
    size_t before = *most;
    while (before < size && !__atomic_compare_exchange_n(most, &before, size, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

/* Whether a process has ended, also where its parent has not asked for its exit code yet. */
static int is_gone(pid_t pid) {
    char text[128] = "";
    snprintf(text, sizeof text, "/proc/%d/stat", pid);
    int file = open(text, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 1;
    text[size] = 0;
    const char *state = strrchr(text, ')'); /* behind the program's name */
    return state && strchr("ZX", state[2]);
}

/* Maps the table, or one for this process alone where nobody has made it one to share. */
static void open_table(void) {
    const char *path = getenv("MEMTUNE_EMULATED_PROCESSES");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    int is_shared = file >= 0 && !ftruncate(file, sizeof *table);
    if (path && !is_shared) perror("memtune: emulated GPU: what this process takes is in no result");
    if (table) munmap(table, sizeof *table);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                 is_shared ? file : -1, 0);
    if (file >= 0) close(file);
    if (table == MAP_FAILED) perror("memtune: emulated GPU"), abort();
}

/* The accounts of this process, one for each GPU; a fork has none of its parent's memory. NULL if the table is full. */
static struct account *accounts(void) {
    pid_t pid = getpid();
    if (__atomic_load_n(&owner, __ATOMIC_ACQUIRE) == pid) return own;
    pthread_mutex_lock(&lock);
    if (owner != pid) {
        open_table();
        own = NULL;
        for (int place = 0; place < MOST_PROCESSES && !own; place++) {
            pid_t before = table->pids[place];
            if (before && before != pid && !is_gone(before)) continue;
            if (__atomic_compare_exchange_n(&table->pids[place], &before, pid, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                own = memset(table->accounts[place], 0, sizeof table->accounts[place]);
        }
        __atomic_store_n(&owner, pid, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return own;
}

/* The account of a place in the table, if its process is there and uses the GPU. */
static struct account *user(int place, int index) {
    struct account *account = &table->accounts[place][index];
    return account->has_context && (account == &own[index] || !is_gone(table->pids[place])) ? account : NULL;
}

/* What all processes but one have of a GPU, with their contexts. */
static size_t others_of(const struct account *account, int index) {
    size_t sum = 0;
    for (int place = 0; place < MOST_PROCESSES && table->pids[place]; place++) {
        struct account *other = user(place, index);
        if (other && other != account) sum += other->used + gpu.context;
    }
    return sum;
}

/* What all have, with the contexts of all but one, which lies in what is outside in any case. */
static size_t taken(int index) {
    size_t sum = others_of(&own[index], index);
    if (own[index].has_context) return sum + own[index].used;
    return sum ? sum - gpu.context : 0;
}

int process_take(int index, size_t size) {
    struct account *account = accounts();
    if (!account) return OUT_OF_MEMORY;
    account += index;
    if (!account->has_context) {
        if (__atomic_fetch_add(&table->users[index], 1, __ATOMIC_SEQ_CST))
            account->others = table->together[index] + gpu.context;
        account->has_context = 1;
        account->beside = others_of(account, index);
    }
    __atomic_add_fetch(&account->used, size, __ATOMIC_SEQ_CST);
    int fits = taken(index) + gpu.outside <= gpu.total;
    if (!fits) process_give(index, size); /* and a context remains */
    raise_to(&account->peak, account->used);
    raise_to(&table->together[index], taken(index));
    for (int place = 0; place < MOST_PROCESSES && table->pids[place]; place++) {
        struct account *other = user(place, index);
        if (!other || other == account) continue;
        raise_to(&other->others, others_of(other, index));
        raise_to(&other->beside, others_of(other, index));
    }
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

void process_give(int index, size_t size) {
    struct account *account = accounts();
    if (!account) return;
    size_t *used = &account[index].used;
    /* A fork may free what its parent has taken. */
    __atomic_sub_fetch(used, size < *used ? size : *used, __ATOMIC_SEQ_CST);
}

size_t gpu_free_bytes(int index) {
    size_t all = (accounts() ? taken(index) : 0) + gpu.outside;
    return all < gpu.total ? gpu.total - all : 0;
}

/* The next process in the table that uses a GPU and what it has, without what is outside of a single one; returns the
 * place behind it, 0 at the end. */
int next_user(int index, int place, int *pid, size_t *used) {
    if (!accounts()) return 0;
    for (; place < MOST_PROCESSES && table->pids[place]; place++) {
        struct account *account = user(place, index);
        if (!account) continue;
        *pid = table->pids[place], *used = account->used + (account == &own[index] ? gpu.outside : gpu.context);
        return place + 1;
    }
    return 0;
}

/* What the report asks for: of a GPU that the process sees, and of one of the node. */
size_t emulated_used_peak(int device) { return accounts() ? own[gpu_of(device)].peak : 0; }

/* How much more others had at most, while this process used the GPU, than they have now. */
size_t emulated_others_left(int device) {
    struct account *account = accounts();
    if (!account || !account[gpu_of(device)].has_context) return 0;
    account += gpu_of(device);
    size_t now = others_of(account, gpu_of(device));
    return now < account->beside ? account->beside - now : 0;
}

int emulated_others(int index, size_t *used, size_t *others, size_t *together) {
    struct account *account = accounts();
    if (!account) return 0;
    account += index;
    *used = account->peak, *together = table->together[index];
    *others = account->has_context ? account->others : *together;
    return table->users[index] - account->has_context;
}
