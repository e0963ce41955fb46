// libhccl: CANN's collectives, between the processes and threads of one machine.
//
// A rank whose process has made the root info is the hub: all others send their data to it, and it
// sends back the results. Reductions go over the ranks in order, in float64 or the integers' own
// type, and round once, so all ranks get the same bits.
#define _GNU_SOURCE
#include "core.h"

#include <acl/acl.h>
#include <errno.h>
#include <hccl/hccl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "types.h"

static const char MAGIC[8] = "normgrad";
enum { MOST_RANKS = 1 << 16, TOKEN = 16, MOST_WAITING = 64 };
enum { CONNECT = 120, EXECUTE = 1836 }; // seconds

struct communicator {
    struct object object;
    uint32_t rank, size;
    int hub;              // the connection to it, or -1 for the hub itself
    pthread_mutex_t lock; // one collective at a time
    int peers[];          // the hub's connections to the other ranks
};

struct root {
    char magic[sizeof MAGIC], token[TOKEN];
};
// The sockets of root infos that were made in this process, or in the one that it was forked from,
// and that it has not used. Of all these processes the first that can read ``claim`` is the hub.
static struct {
    bool is_used;
    char token[TOKEN];
    int socket, claim;
} waiting[MOST_WAITING];

static socklen_t address_of(const char *token, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                          "normgrad-hccl-"); // in no folder
    for (int i = 0; i < TOKEN / 2; ++i)
        length += snprintf(address->sun_path + 1 + length, 3, "%02x", (unsigned char)token[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void set_timeout(int socket, int seconds)
{
    struct timeval time = {seconds, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static int transfer(int socket, void *data, size_t size, bool sends)
{
    for (char *at = data; size;) {
        ssize_t part = sends ? send(socket, at, size, MSG_NOSIGNAL) : recv(socket, at, size, 0);
        if (part < 0 && errno == EINTR)
            continue;
        if (part == 0)
            errno = ECONNRESET;
        if (part <= 0)
            return -1;
        at += part;
        size -= (size_t)part;
    }
    return 0;
}

static int send_all(int socket, const void *data, uint64_t size)
{
    return transfer(socket, &size, sizeof size, true) || transfer(socket, (void *)data, size, true);
}

// Receive exactly ``size`` bytes; another size is a protocol error.
static int receive_all(int socket, void *data, uint64_t size)
{
    uint64_t its = 0;
    if (transfer(socket, &its, sizeof its, false))
        return -1;
    if (its != size) {
        errno = EPROTO;
        return -1;
    }
    return transfer(socket, data, size, false);
}

static int fail_exchange(const struct call *call)
{
    bool is_late = errno == EAGAIN || errno == EWOULDBLOCK || errno == ETIMEDOUT;
    const char *what = is_late                                 ? "timed out"
                       : errno == ECONNRESET || errno == EPIPE ? "another rank has ended"
                       : errno == EPROTO ? "it makes another call, or has this number"
                                         : strerror(errno);
    return fail(call, is_late ? HCCL_E_TIMEOUT : HCCL_E_REMOTE,
                "another rank: %s; allowed: all ranks make the same calls", what);
}

API HcclResult HcclGetRootInfo(HcclRootInfo *rootInfo)
{
    BEGIN(&OF_HCCL);
    struct root root;
    struct sockaddr_un address;
    NEED_PLACE(rootInfo);
    memcpy(root.magic, MAGIC, sizeof MAGIC);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int claim = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    if (listener < 0 || claim < 0 || getrandom(root.token, TOKEN, 0) != TOKEN ||
        bind(listener, (void *)&address, address_of(root.token, &address)) ||
        listen(listener, 64)) {
        int status = fail(call, HCCL_E_SYSCALL, "no socket: %s", strerror(errno));
        close(listener);
        close(claim);
        return (HcclResult)status;
    }
    lock(&rare_lock);
    int place = 0;
    while (place < MOST_WAITING && waiting[place].is_used)
        ++place;
    if (place < MOST_WAITING) {
        memcpy(waiting[place].token, root.token, TOKEN);
        waiting[place].socket = listener;
        waiting[place].claim = claim;
        waiting[place].is_used = true;
    }
    unlock(&rare_lock);
    if (place == MOST_WAITING) {
        close(listener);
        close(claim);
        return fail(call, HCCL_E_MEMORY, "%d root infos that no rank has used; allowed: fewer",
                    MOST_WAITING);
    }
    memset(rootInfo, 0, sizeof *rootInfo);
    memcpy(rootInfo->internal, &root, sizeof root);
    return 0;
}

static void drop_communicator(void *object)
{
    struct communicator *it = object;
    if (it->hub >= 0)
        close(it->hub);
    for (uint32_t rank = 0; it->hub < 0 && rank < it->size; ++rank)
        if (it->peers[rank] >= 0)
            close(it->peers[rank]);
    pthread_mutex_destroy(&it->lock);
    free(it);
}

struct greeting {
    char token[TOKEN];
    uint32_t rank, size;
};

static int join_hub(struct communicator *it, const char *token)
{
    struct sockaddr_un address;
    struct greeting greeting = {.rank = it->rank, .size = it->size};
    char answer[TOKEN];
    memcpy(greeting.token, token, TOKEN);
    it->hub = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    set_timeout(it->hub, CONNECT);
    if (connect(it->hub, (void *)&address, address_of(token, &address)) ||
        send_all(it->hub, &greeting, sizeof greeting) || receive_all(it->hub, answer, TOKEN))
        return -1;
    set_timeout(it->hub, EXECUTE);
    return 0;
}

static int become_hub(struct communicator *it, int listener, const char *token)
{
    struct greeting greeting;
    set_timeout(listener, CONNECT);
    for (uint32_t count = 1; count < it->size;) {
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0)
            return -1;
        set_timeout(peer, CONNECT);
        if (receive_all(peer, &greeting, sizeof greeting) || memcmp(greeting.token, token, TOKEN) ||
            greeting.size != it->size || greeting.rank >= it->size || greeting.rank == it->rank ||
            it->peers[greeting.rank] >= 0) {
            send_all(peer, token, 0);
            close(peer);
            continue;
        }
        set_timeout(peer, EXECUTE);
        it->peers[greeting.rank] = peer;
        ++count;
    }
    for (uint32_t rank = 0; rank < it->size; ++rank)
        if (it->peers[rank] >= 0 && send_all(it->peers[rank], token, TOKEN))
            return -1;
    return 0;
}

API HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank,
                                    HcclComm *comm)
{
    BEGIN(&OF_HCCL);
    struct root root;
    NEED_PLACE(comm);
    if (!rootInfo)
        return refuse_null(call, "rootInfo", "a pointer");
    memcpy(&root, rootInfo->internal, sizeof root);
    if (memcmp(root.magic, MAGIC, sizeof MAGIC))
        return refuse(call, "rootInfo: none of HcclGetRootInfo; allowed: what that made");
    if (rank >= nRanks)
        return refuse(call, "rank: %u of %u; allowed: less than nRanks", rank, nRanks);
    if (nRanks > MOST_RANKS)
        return refuse(call, "nRanks: %u; allowed: up to %d", nRanks, MOST_RANKS);
    TRY(need_device(call, HCCL_E_RUNTIME));
    struct communicator *it = malloc(sizeof *it + nRanks * sizeof *it->peers);
    if (!it)
        return fail(call, HCCL_E_MEMORY, "no memory");
    *it = (struct communicator){
        .object = {1, drop_communicator}, .rank = rank, .size = nRanks, .hub = -1};
    pthread_mutex_init(&it->lock, NULL);
    for (uint32_t i = 0; i < nRanks; ++i)
        it->peers[i] = -1;
    int listener = -1, claim = -1;
    lock(&rare_lock);
    for (int i = 0; i < MOST_WAITING && listener < 0; ++i)
        if (waiting[i].is_used && !memcmp(waiting[i].token, root.token, TOKEN)) {
            listener = waiting[i].socket;
            claim = waiting[i].claim;
            waiting[i].is_used = false;
        }
    unlock(&rare_lock);
    eventfd_t first;
    bool is_hub = !eventfd_read(claim, &first);
    int status = is_hub ? become_hub(it, listener, root.token) : join_hub(it, root.token);
    if (status)
        status = fail_exchange(call);
    close(listener);
    close(claim);
    if (status) {
        leave(it);
        return (HcclResult)status;
    }
    return (HcclResult)put_handle(call, comm, COMMUNICATOR, it);
}

// Let the other ranks see that this one has ended. Needs the lock.
static void disconnect(const struct communicator *it)
{
    shutdown(it->hub, SHUT_RDWR);
    for (uint32_t rank = 0; it->hub < 0 && rank < it->size; ++rank)
        shutdown(it->peers[rank], SHUT_RDWR);
}

API HcclResult HcclCommDestroy(HcclComm comm)
{
    BEGIN(&OF_HCCL);
    struct communicator *it;
    TRY(take(call, "comm", COMMUNICATOR, comm, &it));
    pthread_mutex_lock(&it->lock);
    disconnect(it);
    pthread_mutex_unlock(&it->lock);
    return 0;
}

API HcclResult HcclGetRankSize(HcclComm comm, uint32_t *rankSize)
{
    BEGIN(&OF_HCCL);
    struct communicator *it;
    TRY(need(call, "comm", COMMUNICATOR, comm, &it));
    NEED_PLACE(rankSize);
    *rankSize = it->size;
    return 0;
}

API HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank)
{
    BEGIN(&OF_HCCL);
    struct communicator *it;
    TRY(need(call, "comm", COMMUNICATOR, comm, &it));
    NEED_PLACE(rank);
    *rank = it->rank;
    return 0;
}

// Reductions

static const size_t SIZES[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};

static double bfloat16_of(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

// Round a float64 to float32 so that rounding that to a half type rounds the float64 to nearest: to
// odd, which no tie of the half type is.
static float to_odd(double value)
{
    float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if ((double)near == value || near != near || bits & 1 || (bits & 0x7F800000) == 0x7F800000)
        return near;
    bool is_larger =
        ((double)near < 0 ? -(double)near : (double)near) > (value < 0 ? -value : value);
    bits += is_larger ? -1u : 1u;
    memcpy(&near, &bits, sizeof near);
    return near;
}

static uint16_t to_bfloat16(double value)
{
    float single = to_odd(value);
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (single != single)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(op, a, b)                                                                          \
    ((op) == HCCL_REDUCE_SUM    ? (a) + (b)                                                        \
     : (op) == HCCL_REDUCE_PROD ? (a) * (b)                                                        \
     : (op) == HCCL_REDUCE_MAX  ? ((a) != (a) || (a) > (b) ? (a) : (b))                            \
                                : ((a) != (a) || (a) < (b) ? (a) : (b)))
// Reduce each element over the ranks' data, one behind the other: in ``wide``, then as ``narrow`` has it.
#define REDUCE(dtype, type, wide, widen, narrow)                                                   \
    case dtype: {                                                                                  \
        const type *values = data;                                                                 \
        type *results = result;                                                                    \
        for (uint64_t i = 0; i < count; ++i) {                                                     \
            wide total = widen(values[i]);                                                         \
            for (uint32_t rank = 1; rank < ranks; ++rank) {                                        \
                wide value = widen(values[rank * count + i]);                                      \
                total = (wide)COMBINE(op, total, value);                                           \
            }                                                                                      \
            results[i] = narrow(total);                                                            \
        }                                                                                          \
        break;                                                                                     \
    }
#define TO_FLOAT16(value) aclFloatToFloat16(to_odd(value))

static void reduce(HcclDataType type, HcclReduceOp op, uint32_t ranks, uint64_t count,
                   const void *data, void *result)
{
    switch (type) {
        REDUCE(HCCL_DATA_TYPE_INT8, int8_t, int8_t, , )
        REDUCE(HCCL_DATA_TYPE_INT16, int16_t, int16_t, , )
        REDUCE(HCCL_DATA_TYPE_INT32, int32_t, int32_t, , )
        REDUCE(HCCL_DATA_TYPE_INT64, int64_t, int64_t, , )
        REDUCE(HCCL_DATA_TYPE_UINT8, uint8_t, uint8_t, , )
        REDUCE(HCCL_DATA_TYPE_UINT16, uint16_t, uint16_t, , )
        REDUCE(HCCL_DATA_TYPE_UINT32, uint32_t, uint32_t, , )
        REDUCE(HCCL_DATA_TYPE_UINT64, uint64_t, uint64_t, , )
        REDUCE(HCCL_DATA_TYPE_FP32, float, double, (double), (float))
        REDUCE(HCCL_DATA_TYPE_FP64, double, double, , )
        REDUCE(HCCL_DATA_TYPE_FP16, uint16_t, double, (double)aclFloat16ToFloat, TO_FLOAT16)
        REDUCE(HCCL_DATA_TYPE_BFP16, uint16_t, double, bfloat16_of, to_bfloat16)
    default:
        break; // no other type has passed check_type
    }
}

// Collectives

enum what { REDUCES, GATHERS, BROADCASTS };
struct exchange {
    struct call call;
    struct communicator *communicator;
    enum what what;
    HcclDataType type;
    HcclReduceOp op;
    uint32_t root;
    uint64_t count, sent, received; // elements, and bytes
    void *source, *target;
};

static int exchange_on_hub(const struct exchange *it, struct communicator *with)
{
    char *all = malloc(it->sent * with->size + 1);
    int status = all ? 0 : -1;
    if (!status && it->sent)
        memcpy(all + it->sent * with->rank, it->source, it->sent);
    for (uint32_t rank = 0; rank < with->size && !status; ++rank)
        if (rank != with->rank)
            status = receive_all(with->peers[rank], all + it->sent * rank, it->sent);
    if (!status && it->what == REDUCES)
        reduce(it->type, it->op, with->size, it->count, all, it->target);
    else if (!status && it->received)
        memcpy(it->target, all + (it->what == BROADCASTS ? it->sent * it->root : 0), it->received);
    for (uint32_t rank = 0; rank < with->size && !status; ++rank)
        if (rank != with->rank)
            status = send_all(with->peers[rank], it->target, it->received);
    free(all);
    return status;
}

static int run_exchange(void *data)
{
    const struct exchange *it = data;
    struct communicator *with = it->communicator;
    announce(it->source, it->sent, false);
    pthread_mutex_lock(&with->lock);
    int status = with->hub < 0 ? exchange_on_hub(it, with)
                               : send_all(with->hub, it->source, it->sent) ||
                                     receive_all(with->hub, it->target, it->received);
    if (status) {
        status = fail_exchange(&it->call);
        disconnect(with); // or the ranks that have not failed would wait
    }
    pthread_mutex_unlock(&with->lock);
    announce(it->target, it->received, true);
    return status;
}

static void drop_exchange(void *data)
{
    leave(((struct exchange *)data)->communicator);
    free(data);
}

static int collect(const struct call *call, void *stream, struct exchange exchange,
                   const char *source, const char *target)
{
    struct communicator *with = exchange.communicator;
    struct stream *on = stream_of(call, stream);
    if (!on)
        return call->statuses->refusal;
    TRY(need_device(call, HCCL_E_RUNTIME));
    TRY(reach(call, true, source, exchange.source, exchange.sent, true));
    TRY(reach(call, true, target, exchange.target, exchange.received, true));
    struct exchange *it = malloc(sizeof *it);
    if (!it)
        return fail(call, HCCL_E_MEMORY, "no memory");
    *it = exchange;
    it->call = *call;
    hold(with);
    return submit(call, on, run_exchange, it, drop_exchange);
}

static int check_type(const struct call *call, HcclDataType type)
{
    if ((size_t)type < sizeof SIZES / sizeof *SIZES)
        return 0;
    return refuse(call, "dataType: %d; allowed: an HcclDataType of numbers", (int)type);
}

// The bytes of a rank's data, of which the hub holds all ranks' at once.
static int size_of(const struct call *call, const char *name, uint64_t count, HcclDataType type,
                   const struct communicator *with, uint64_t *size)
{
    *size = count * SIZES[type];
    if (count <= PTRDIFF_MAX / SIZES[type] / with->size)
        return 0;
    return refuse(call, "%s: %zu; allowed: fewer elements than memory has", name, (size_t)count);
}

API HcclResult HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType,
                             HcclReduceOp op, HcclComm comm, aclrtStream stream)
{
    BEGIN(&OF_HCCL);
    struct communicator *with;
    TRY(check_type(call, dataType));
    if ((unsigned)op > HCCL_REDUCE_MIN)
        return refuse(
            call,
            "op: %d; allowed: HCCL_REDUCE_SUM, HCCL_REDUCE_PROD, HCCL_REDUCE_MAX, HCCL_REDUCE_MIN",
            (int)op);
    TRY(need(call, "comm", COMMUNICATOR, comm, &with));
    uint64_t size;
    TRY(size_of(call, "count", count, dataType, with, &size));
    return collect(call, stream,
                   (struct exchange){.communicator = with,
                                     .what = REDUCES,
                                     .type = dataType,
                                     .op = op,
                                     .count = count,
                                     .sent = size,
                                     .received = size,
                                     .source = sendBuf,
                                     .target = recvBuf},
                   "sendBuf", "recvBuf");
}

API HcclResult HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount,
                             HcclDataType dataType, HcclComm comm, aclrtStream stream)
{
    BEGIN(&OF_HCCL);
    struct communicator *with;
    TRY(check_type(call, dataType));
    TRY(need(call, "comm", COMMUNICATOR, comm, &with));
    uint64_t size;
    TRY(size_of(call, "sendCount", sendCount, dataType, with, &size));
    return collect(call, stream,
                   (struct exchange){.communicator = with,
                                     .what = GATHERS,
                                     .sent = size,
                                     .received = size * with->size,
                                     .source = sendBuf,
                                     .target = recvBuf},
                   "sendBuf", "recvBuf");
}

API HcclResult HcclBroadcast(void *buf, uint64_t count, HcclDataType dataType, uint32_t root,
                             HcclComm comm, aclrtStream stream)
{
    BEGIN(&OF_HCCL);
    struct communicator *with;
    TRY(check_type(call, dataType));
    TRY(need(call, "comm", COMMUNICATOR, comm, &with));
    if (root >= with->size)
        return refuse(call, "root: %u; allowed: less than %u, the number of ranks", root,
                      with->size);
    uint64_t size;
    TRY(size_of(call, "count", count, dataType, with, &size));
    return collect(call, stream,
                   (struct exchange){.communicator = with,
                                     .what = BROADCASTS,
                                     .root = root,
                                     .sent = size,
                                     .received = size,
                                     .source = buf,
                                     .target = buf},
                   "buf", "buf");
}

API HcclResult HcclBarrier(HcclComm comm, aclrtStream stream)
{
    BEGIN(&OF_HCCL);
    struct communicator *with;
    TRY(need(call, "comm", COMMUNICATOR, comm, &with));
    return collect(call, stream, (struct exchange){.communicator = with, .what = GATHERS}, "buf",
                   "buf");
}

API const char *HcclGetErrorString(HcclResult code)
{
    static __thread char text[48];
    if ((size_t)code < sizeof HCCL_RESULTS / sizeof *HCCL_RESULTS)
        return HCCL_RESULTS[code];
    snprintf(text, sizeof text, "%d, which is no HcclResult", (int)code);
    return text;
}
