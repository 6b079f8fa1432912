#ifndef HOLDFAST_HOLDFAST_H_
#define HOLDFAST_HOLDFAST_H_

/* clang-format off */
/*
 * Holdfast, C interface: checkpoints of a training process, kept where its failure cannot reach
 * them.
 *
 *   holdfast_options options = HOLDFAST_OPTIONS_INIT;
 *   options.job = "my-run"; options.rank = 0; options.world = 1;
 *   holdfast_client* client = NULL;
 *   holdfast_error error;
 *   if (holdfast_open(&options, tensors, tensor_count, &client, &error) != HOLDFAST_OK) ...
 *   if (holdfast_restore(client, NULL, 60000, &restored, &error) == HOLDFAST_NOT_FOUND) ...fresh
 *   for (;;) {
 *     forward(); backward();
 *     holdfast_guard(client, NULL, &error);         // before the tensors change
 *     optimizer_step();
 *     holdfast_save(client, ++step, NULL, &error);  // returns at once
 *   }
 *   holdfast_close(client, 10000, &error);
 *
 * OWNERSHIP, one rule. What you pass belongs to you: it is read during the call and copied if it is
 * needed longer. The one exception is the memory of the tensors: it stays yours, the library reads
 * it between holdfast_save and holdfast_guard and writes it during holdfast_restore, and it must
 * stay valid until holdfast_close returns. What you get belongs to the library: it is valid until
 * the object you got it from (client, restored) is closed or freed.
 *
 * ERRORS. Every fallible function returns a holdfast_code and, when `error` is not NULL, fills it.
 * An operation that failed in the background is reported once, by the next holdfast_save or
 * holdfast_guard: such a call has done its own work too, and `error->asynchronous`
 * is 1. holdfast_close reports the first of them again. Training may go on after any error.
 *
 * THREADS. A client may be used from several threads; calls on one client are safe together, except
 * that nothing may follow or overlap holdfast_close. The library's own threads block all signals.
 * After fork() the child's calls return HOLDFAST_FAILED_PRECONDITION and do nothing.
 *
 * GROWTH. Structures that you fill begin with their size, so that a program built against an older
 * header keeps working. Zero means the default in every field. Numbers never change their meaning.
 */
/* clang-format on */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HOLDFAST_API __attribute__((visibility("default")))
#else
#define HOLDFAST_API
#endif

/* The version of this header; holdfast_api_version() gives that of the library in use. */
#define HOLDFAST_API_VERSION 3u

/* ------------------------------------------------------------------------------------- errors */

typedef int32_t holdfast_code;
enum {
  HOLDFAST_OK = 0,
  HOLDFAST_INVALID_ARGUMENT = 1,    /* can never work as called */
  HOLDFAST_NOT_FOUND = 2,           /* restore: the job has no version yet, start fresh */
  HOLDFAST_ALREADY_EXISTS = 3,      /* that step is saved already */
  HOLDFAST_PERMISSION_DENIED = 4,   /* the message names path, owner and mode */
  HOLDFAST_FAILED_PRECONDITION = 5, /* not in this state (or in a forked child) */
  HOLDFAST_RESOURCE_EXHAUSTED = 6,  /* no slot free, or the state does not fit: with the numbers */
  HOLDFAST_OUT_OF_SPACE = 7,        /* the disk of the node is full */
  HOLDFAST_IO_ERROR = 8,
  HOLDFAST_DATA_LOSS = 9,    /* bytes do not match their checksum */
  HOLDFAST_UNAVAILABLE = 10, /* the agent is not there; the client keeps trying in the background */
  HOLDFAST_DEADLINE_EXCEEDED = 11,
  HOLDFAST_ABORTED = 12, /* given up in favour of a newer version */
  HOLDFAST_FENCED = 13,  /* a newer start of this job is running: this one must stop */
  HOLDFAST_UNSUPPORTED = 14,
  HOLDFAST_CANCELLED = 15,
  HOLDFAST_INTERNAL = 16 /* a defect in Holdfast; please report it */
};

#define HOLDFAST_MESSAGE_BYTES 4096

typedef struct holdfast_error {
  holdfast_code code;
  uint32_t asynchronous; /* 1: an earlier operation failed; the call itself did its work */
  uint64_t step;         /* the step it concerns, when asynchronous */
  char message[HOLDFAST_MESSAGE_BYTES]; /* what is wrong and what to do; "" when OK */
} holdfast_error;

/* "NotFound" for HOLDFAST_NOT_FOUND; "Unknown" for other numbers. Never NULL. */
HOLDFAST_API const char* holdfast_code_name(holdfast_code code);
/* HOLDFAST_API_VERSION of the library. */
HOLDFAST_API uint32_t holdfast_api_version(void);
/* "0.1.0". */
HOLDFAST_API const char* holdfast_version_string(void);

/* --------------------------------------------------------------------------------- describing */

/* Element types, as in safetensors. */
enum {
  HOLDFAST_BOOL = 0,
  HOLDFAST_U8 = 1,
  HOLDFAST_I8 = 2,
  HOLDFAST_F8_E4M3 = 3,
  HOLDFAST_F8_E5M2 = 4,
  HOLDFAST_U16 = 5,
  HOLDFAST_I16 = 6,
  HOLDFAST_F16 = 7,
  HOLDFAST_BF16 = 8,
  HOLDFAST_U32 = 9,
  HOLDFAST_I32 = 10,
  HOLDFAST_F32 = 11,
  HOLDFAST_U64 = 12,
  HOLDFAST_I64 = 13,
  HOLDFAST_F64 = 14,
  HOLDFAST_C64 = 15
};

/* Where a tensor's memory is. */
enum { HOLDFAST_HOST = 0, HOLDFAST_CUDA = 1 };

/* Where a version is safe. HOLDFAST_SEALED is less than a tier: this rank's own shard is complete
 * and checksummed in its node's memory, whatever the other ranks have. */
enum {
  HOLDFAST_SEALED = 0,
  HOLDFAST_TIER_MEMORY = 1,
  HOLDFAST_TIER_PEER = 2,
  HOLDFAST_TIER_DISK = 3,
  HOLDFAST_TIER_REMOTE = 4
};

/* One tensor of this rank: dense, row-major. Fill unused fields with zeros. */
typedef struct holdfast_tensor {
  const char* name;             /* UTF-8, unique in this rank, at most 4096 bytes */
  void* data;                   /* may be NULL only when the tensor has no elements */
  const uint64_t* shape;        /* `dimensions` numbers; NULL for a scalar */
  uint32_t dimensions;          /* 0: a scalar; at most 32 */
  uint32_t dtype;               /* HOLDFAST_F32, … */
  uint32_t device;              /* HOLDFAST_HOST or HOLDFAST_CUDA */
  int32_t device_index;         /* CUDA device number */
  const uint64_t* global_shape; /* of the tensor this is a slice of; NULL: not sliced */
  const uint64_t* offset;       /* of this slice in it; NULL: zeros */
  uint64_t reserved[4];
} holdfast_tensor;

/* Small named bytes that belong to a version: RNG, scheduler, data position. */
typedef struct holdfast_extra {
  const char* name; /* [A-Za-z0-9._-]{1,128}, unique in one save */
  const void* data;
  uint64_t bytes;
} holdfast_extra;

/* What a save does when no slot is free. */
enum {
  HOLDFAST_SKIP = 0, /* this step is not saved; counted in the statistics */
  HOLDFAST_WAIT = 1  /* wait up to wait_ms for a slot, in the background; then skip */
};

enum {
  HOLDFAST_LOG_DEBUG = 0,
  HOLDFAST_LOG_INFO = 1,
  HOLDFAST_LOG_WARN = 2,
  HOLDFAST_LOG_ERROR = 3
};
/* Called from any thread, by one at a time; must not call into the client. */
typedef void (*holdfast_log_fn)(void* context, int level, const char* message);

typedef struct holdfast_options {
  size_t struct_size;      /* sizeof(holdfast_options) */
  const char* socket_path; /* NULL: $HOLDFAST_SOCKET, else /run/holdfast/agent.sock */
  const char* job;         /* required; [A-Za-z0-9._-]{1,128} */
  /* Names this start of the job: the launcher gives all ranks the same new one at each start. NULL:
   * $HOLDFAST_RUN_ID; when that is unset too, random with world 1 and an error otherwise. */
  const char* run_id;
  uint32_t rank;
  uint32_t world;              /* required, at least 1 */
  uint32_t slots;              /* versions held in memory at once; 0: 3 (2 at least) */
  uint32_t when_full;          /* HOLDFAST_SKIP or HOLDFAST_WAIT */
  uint32_t wait_ms;            /* for HOLDFAST_WAIT; 0: 1000 */
  uint32_t connect_timeout_ms; /* how long holdfast_open waits for the agent; 0: 10000 */
  uint32_t agent_timeout_ms;   /* how long a save waits for the agent's answer; 0: 500 */
  uint32_t start_offline;      /* 1: holdfast_open succeeds without an agent and keeps trying */
  uint64_t extra_bytes_max;    /* room for the extras of one save; 0: 1 MiB */
  uint32_t extra_count_max;    /* 0: 16 */
  uint32_t copy_threads;       /* for restore of host tensors; 0: 2 */
  holdfast_log_fn log;         /* NULL: silent */
  void* log_context;
} holdfast_options;

#define HOLDFAST_OPTIONS_INIT \
  { sizeof(holdfast_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ------------------------------------------------------------------------------------- client */

typedef struct holdfast_client holdfast_client;

/* Connects to this node's agent and describes the state once. The agent reserves memory for `slots`
 * copies of it, which can take some time for many gigabytes.
 *   InvalidArgument: every defect of options and tensors, named. ResourceExhausted: the state does
 *   not fit the agent's arena (the numbers are in the message). PermissionDenied, Fenced.
 *   Unavailable: no agent within connect_timeout_ms (with start_offline this is OK instead).
 * Blocks at most connect_timeout_ms. `*client` is NULL on error. */
HOLDFAST_API holdfast_code holdfast_open(const holdfast_options* options,
                                         const holdfast_tensor* tensors, size_t tensor_count,
                                         holdfast_client** client, holdfast_error* error);

/* OK while connected; otherwise why not (Unavailable, Fenced, …). Never blocks. */
HOLDFAST_API holdfast_code holdfast_connection(holdfast_client* client, holdfast_error* error);

typedef struct holdfast_save_options {
  size_t struct_size; /* sizeof(holdfast_save_options) */
  const holdfast_extra* extras;
  size_t extra_count;
  /* cudaStream_t: device tensors are copied after the work queued on it so far. NULL: on the
   * default streams of all devices that hold tensors. */
  void* stream;
  /* Not 0: when no slot is free this save waits for one up to so long, in the background, whatever
   * the client's policy; for a version that matters, such as the last. Guard waits for it too. */
  uint32_t wait_ms;
  uint32_t reserved;
} holdfast_save_options;

/* Saves all tensors as version `step` of this start of the job. Returns at once: neither the agent
 * nor the copy is waited for. From here until holdfast_guard returns the tensors must not change.
 * Steps must grow. `options` may be NULL.
 *   Unavailable: not connected, this step is not saved. ResourceExhausted: the queue of unfinished
 *   saves is full, or the extras exceed extra_bytes_max. AlreadyExists: a step that is not greater.
 *   Fenced. What becomes of an accepted save is seen through holdfast_wait, the statistics and, if
 *   it fails, the next call. */
HOLDFAST_API holdfast_code holdfast_save(holdfast_client* client, uint64_t step,
                                         const holdfast_save_options* options,
                                         holdfast_error* error);

/* Call before the tensors change. Returns when no copy reads host tensors any more, and makes
 * `stream` (a cudaStream_t, NULL as in holdfast_save; ignored without device tensors) wait for the
 * copies of device tensors.
 * It waits for this process's own copy; for an agent that has not yet granted a slot at most
 * agent_timeout_ms and the time that the save may wait for a slot, then that save is skipped. */
HOLDFAST_API holdfast_code holdfast_guard(holdfast_client* client, void* stream,
                                          holdfast_error* error);

/* What a training process can be doing that Holdfast should know of. */
enum {
  HOLDFAST_PHASE_COLLECTIVE = 1, /* its ranks talk to each other; traffic of ours makes room */
  /* Work that makes no step, so that it is not taken for a hang: */
  HOLDFAST_PHASE_INIT = 2,
  HOLDFAST_PHASE_COMPILE = 3,
  HOLDFAST_PHASE_CHECKPOINT = 4,
  HOLDFAST_PHASE_EVALUATION = 5
};

/* Hints around a phase, from any thread; phases nest, and overlap over threads. They cost some
 * stores to memory: no call into the system, no lock. They cannot fail, whether there is an agent
 * or not; a hint that is missing or wrong costs time, never bytes: the agent yields for a bounded
 * time, and forgets a process that has ended. Unknown numbers, a NULL client and an end without a
 * begin do nothing. */
HOLDFAST_API void holdfast_phase_begin(holdfast_client* client, uint32_t phase);
HOLDFAST_API void holdfast_phase_end(holdfast_client* client, uint32_t phase);

/* -------------------------------------------------------------------------------- collectives
 *
 * What this process tells of its steps and of its communication, so that the rank that hangs or is
 * slow can be found: by which operations are begun and not ended, on whom transfers wait, who
 * comes late. Jobs on NCCL get the records by NCCL_PROFILER_PLUGIN=holdfast and need only
 * holdfast_step, or nothing: a save is a step too. Everybody else calls what follows.
 *
 * The calls store to memory: no lock (but for describe and forget), no call into the system, no
 * waiting, any thread, about 50 ns. They cannot fail; what finds no room is left out and counted
 * (holdfast_stats). A NULL client means this process's first client, present or future: a library
 * that has no client records through it. Indices are places in a communicator, from 0; times are
 * nanoseconds; bytes are bytes. */

/* The trainer begins `step`; the one before is over. The same step again changes nothing. */
HOLDFAST_API void holdfast_step(holdfast_client* client, uint64_t step);

/* What a communicator is for: ranks with the same part are compared with each other. */
enum {
  HOLDFAST_ROLE_UNKNOWN = 0,
  HOLDFAST_ROLE_DATA = 1, /* replicas */
  HOLDFAST_ROLE_TENSOR = 2,
  HOLDFAST_ROLE_PIPELINE = 3,
  HOLDFAST_ROLE_EXPERT = 4
};

typedef struct holdfast_communicator {
  size_t struct_size; /* sizeof(holdfast_communicator) */
  /* The same number on all members, another for another communicator. 0 is all ranks of the job,
   * by rank; it need not be described. */
  uint64_t id;
  uint32_t size;           /* members */
  uint32_t index;          /* this process's place */
  const uint32_t* members; /* `size` ranks of the job, by index; NULL: not known here */
  uint32_t role;           /* HOLDFAST_ROLE_DATA, … */
  uint32_t reserved;
} holdfast_communicator;

/* Before the first operation in it. Describing an id again replaces what was said.
 *   InvalidArgument. ResourceExhausted: more than 128 at once. */
HOLDFAST_API holdfast_code holdfast_communicator_describe(holdfast_client* client,
                                                          const holdfast_communicator* communicator,
                                                          holdfast_error* error);
HOLDFAST_API void holdfast_communicator_forget(holdfast_client* client, uint64_t id);

enum {
  HOLDFAST_OTHER_COLLECTIVE = 0,
  HOLDFAST_ALL_REDUCE = 1,
  HOLDFAST_ALL_GATHER = 2,
  HOLDFAST_REDUCE_SCATTER = 3,
  HOLDFAST_BROADCAST = 4,
  HOLDFAST_REDUCE = 5,
  HOLDFAST_ALL_TO_ALL = 6,
  HOLDFAST_SEND = 7,
  HOLDFAST_RECEIVE = 8,
  HOLDFAST_BARRIER = 9
};
enum {
  HOLDFAST_ALGORITHM_UNKNOWN = 0,
  HOLDFAST_ALGORITHM_RING = 1,
  HOLDFAST_ALGORITHM_TREE = 2,
  HOLDFAST_ALGORITHM_COLLNET = 3,
  HOLDFAST_ALGORITHM_NVLS = 4,
  HOLDFAST_ALGORITHM_PAT = 5,
  HOLDFAST_ALGORITHM_OTHER = 6
};
enum {
  HOLDFAST_PROTOCOL_UNKNOWN = 0,
  HOLDFAST_PROTOCOL_SIMPLE = 1,
  HOLDFAST_PROTOCOL_LL = 2,
  HOLDFAST_PROTOCOL_LL128 = 3
};
#define HOLDFAST_NO_PEER 0xFFFFFFFFu
#define HOLDFAST_NO_DTYPE 255u

typedef struct holdfast_collective {
  size_t struct_size; /* sizeof(holdfast_collective) */
  uint64_t communicator;
  /* With numbered 1: its number among those of its kind in the communicator, from 0, the same on
   * all members. Otherwise the library counts. */
  uint64_t sequence;
  uint64_t bytes; /* of this rank's part */
  uint32_t kind;  /* HOLDFAST_ALL_REDUCE, … */
  uint32_t dtype; /* HOLDFAST_F32, … */
  uint32_t peer;  /* index of the root or of the other end; HOLDFAST_NO_PEER */
  uint32_t algorithm;
  uint32_t protocol;
  uint32_t channels;
  uint32_t numbered;
  uint32_t deferred; /* 1: it is only enqueued; holdfast_collective_started says when it runs */
  uint32_t source;   /* 0: the program, 1: the NCCL plugin */
  uint32_t reserved;
} holdfast_collective;

/* Names an operation in flight; 0: not recorded. Any number may be passed back. */
typedef uint64_t holdfast_operation;

HOLDFAST_API holdfast_operation holdfast_collective_begin(holdfast_client* client,
                                                          const holdfast_collective* collective);
HOLDFAST_API void holdfast_collective_started(holdfast_client* client,
                                              holdfast_operation operation);
/* Before the end: how long it ran by the device's own timer. */
HOLDFAST_API void holdfast_collective_device_time(holdfast_client* client,
                                                  holdfast_operation operation, uint64_t ns);
HOLDFAST_API void holdfast_collective_end(holdfast_client* client, holdfast_operation operation);
/* It is over, but its end was not seen: its time says nothing. */
HOLDFAST_API void holdfast_collective_abandon(holdfast_client* client,
                                              holdfast_operation operation);

enum { HOLDFAST_DIRECTION_SEND = 0, HOLDFAST_DIRECTION_RECEIVE = 1 };

/* A transfer with a peer that is over, and what its time went into. They are summed up over
 * (communicator, peer, direction). */
typedef struct holdfast_transfer {
  size_t struct_size; /* sizeof(holdfast_transfer) */
  uint64_t communicator;
  uint32_t peer;
  uint32_t direction;
  uint64_t bytes;
  uint64_t gpu_wait_ns;  /* for this rank's GPU to give or take the data */
  uint64_t peer_wait_ns; /* for the other end: for room to send into, for the first data to come */
  uint64_t transfer_ns;  /* the wire */
  uint64_t flush_ns;     /* received, on the way into the GPU's memory */
} holdfast_transfer;

HOLDFAST_API void holdfast_peer_transfer(holdfast_client* client,
                                         const holdfast_transfer* transfer);

/* What the transfer under way waits for. */
enum {
  HOLDFAST_EDGE_IDLE = 0, /* there is none */
  HOLDFAST_EDGE_SEND_GPU_WAIT = 1,
  HOLDFAST_EDGE_SEND_PEER_WAIT = 2,
  HOLDFAST_EDGE_SEND_WAIT = 3,
  HOLDFAST_EDGE_RECEIVE_WAIT = 4,
  HOLDFAST_EDGE_RECEIVE_FLUSH_WAIT = 5,
  HOLDFAST_EDGE_RECEIVE_GPU_WAIT = 6
};
HOLDFAST_API void holdfast_peer_state(holdfast_client* client, uint64_t communicator, uint32_t peer,
                                      uint32_t direction, uint32_t state);

/* 1 while Holdfast wants the transfers of the operations of now, for those to whom they cost
 * something; else 0. */
HOLDFAST_API uint32_t holdfast_sampling(holdfast_client* client);

/* Waits until `step` or a later step of this start is committed at `tier`: from then on, what
 * happened up to `step` survives what that tier survives. With HOLDFAST_SEALED: until this step
 * itself is sealed. timeout_ms 0 asks without waiting.
 *   ResourceExhausted: that step was skipped. Aborted: a newer version overtook it, and none was
 *   committed in time. NotFound: that step was never saved by this client, or so long ago that it
 * is forgotten (1024 steps). DeadlineExceeded. Any other code: it failed. */
HOLDFAST_API holdfast_code holdfast_wait(holdfast_client* client, uint64_t step, uint32_t tier,
                                         uint64_t timeout_ms, holdfast_error* error);

typedef struct holdfast_version {
  uint64_t incarnation; /* counts the starts of the job, from 1 */
  uint64_t step;
} holdfast_version;

/* The newest version this client knows to be committed at `tier`. NotFound: none. Never blocks. */
HOLDFAST_API holdfast_code holdfast_latest(holdfast_client* client, uint32_t tier,
                                           holdfast_version* version, holdfast_error* error);

typedef struct holdfast_restored {
  holdfast_version version;
  uint64_t bytes; /* of tensors and extras */
  uint32_t tier;  /* where this rank's shard came from */
  uint32_t extra_count;
  const holdfast_extra* extras; /* each `data` is followed by a zero byte not counted in `bytes` */
} holdfast_restored;

/* Fills the tensors from version `wanted` (NULL: the newest that every rank of the job can get
 * back; decided once for all ranks). Waits for a missing agent too, up to timeout_ms. `*restored`
 * is released with holdfast_restored_free; `restored` may be NULL. NotFound: the job has no version
 * to restore: a fresh start. InvalidArgument: the saved state differs from the description; see
 * holdfast_difference; no tensor was touched. Unavailable, DeadlineExceeded: it could not be found
 * out; this is not a fresh start. */
HOLDFAST_API holdfast_code holdfast_restore(holdfast_client* client, const holdfast_version* wanted,
                                            uint64_t timeout_ms, holdfast_restored** restored,
                                            holdfast_error* error);
HOLDFAST_API void holdfast_restored_free(holdfast_restored* restored);

/* All differences the latest holdfast_restore or holdfast_view_load found, one sentence each; valid
 * until the next one. */
HOLDFAST_API size_t holdfast_difference_count(holdfast_client* client);
/* NULL when `index` is out of range. */
HOLDFAST_API const char* holdfast_difference(holdfast_client* client, size_t index);

/* -------------------------------------------------------------------------------------- views
 *
 * A version seen whole, so that it can come back to another number of ranks than saved it, or to
 * ranks that hold other slices. */

typedef struct holdfast_view holdfast_view;

/* One tensor of one shard, as the rank that saved it described it. */
typedef struct holdfast_piece {
  const char* name;
  uint32_t rank; /* of the world that saved it */
  uint32_t dtype;
  uint32_t dimensions;
  uint32_t reserved;
  const uint64_t* shape;
  const uint64_t* global_shape; /* equals shape when it was not sliced */
  const uint64_t* offset;       /* zeros when it was not sliced */
} holdfast_piece;

typedef struct holdfast_rank_extra {
  uint32_t rank;
  uint32_t reserved;
  holdfast_extra extra; /* `data` is followed by a zero byte not counted in `bytes` */
} holdfast_rank_extra;

typedef struct holdfast_view_info {
  holdfast_version version;
  uint32_t tier;  /* the farthest that a shard comes from */
  uint32_t world; /* ranks that saved it */
  const holdfast_piece* pieces;
  size_t piece_count;
  const holdfast_rank_extra* extras;
  size_t extra_count;
} holdfast_view_info;

/* Opens the newest version that the whole job can get back (`wanted` NULL), or that one, whatever
 * its world was. Decided once for all ranks of a start, together with holdfast_restore: all get the
 * same. Nothing is brought anywhere: a load reads what it needs. NotFound: the job has no version
 * to restore: a fresh start. Unavailable, DeadlineExceeded: it could not be found out; this is not
 * a fresh start. `*view` is NULL on error; close it before the client. */
HOLDFAST_API holdfast_code holdfast_view_open(holdfast_client* client,
                                              const holdfast_version* wanted, uint32_t timeout_ms,
                                              holdfast_view** view, holdfast_error* error);

/* What the version has; valid until the view is closed. NULL for NULL. */
HOLDFAST_API const holdfast_view_info* holdfast_view_get(const holdfast_view* view);

/* Fills `tensors`, boxes of global tensors by name, shape, global_shape and offset, from whatever
 * pieces overlap them; they need not be those of holdfast_open, and a name may be there more than
 * once. Pieces may overlap each other, as replicas do: any one serves. Only the bytes that are
 * needed are read, from where they lie, in whole MiB, each checked against its checksum.
 *   FailedPrecondition names every tensor that is missing, has another dtype or global shape, or
 *   is not covered, with the box; see holdfast_difference; nothing is written then. Unsupported:
 *   tensors on a device. After any other error the tensors hold a mixture; Unavailable (the agent
 *   went away): try again. */
HOLDFAST_API holdfast_code holdfast_view_load(holdfast_view* view, const holdfast_tensor* tensors,
                                              size_t count, uint32_t timeout_ms,
                                              holdfast_error* error);

HOLDFAST_API void holdfast_view_close(holdfast_view* view);

/* While this thread waits in holdfast_restore, holdfast_view_open or holdfast_view_load, `check` is
 * called about every 100 ms, with no lock of the library held; when it returns other than 0 the
 * call ends with Cancelled (after a load the tensors hold a mixture). For interpreters, which learn
 * of Ctrl-C so. It must not call into the same client. NULL: nothing is called any more. */
HOLDFAST_API void holdfast_set_stop_check(int (*check)(void* context), void* context);

typedef struct holdfast_stats {
  size_t struct_size;        /* sizeof(holdfast_stats), set by the caller */
  uint64_t saves;            /* steps passed to holdfast_save */
  uint64_t skipped;          /* … of which not copied: no slot, no answer in time */
  uint64_t copied;           /* … of which copied to the end */
  uint64_t sealed;           /* … of which sealed by the agent */
  uint64_t failed;           /* … of which lost otherwise */
  uint64_t committed_memory; /* commits at these tiers that this client was told of */
  uint64_t committed_disk;
  uint64_t overtaken;       /* versions given up at some tier for a newer one */
  uint64_t reconnects;      /* connections after the first */
  uint64_t bytes_copied;    /* into slots */
  uint64_t copy_ns;         /* time spent copying */
  uint64_t guard_ns;        /* time callers were blocked in holdfast_guard */
  uint64_t incarnation;     /* of this start; 0 before the first connection */
  uint64_t image_bytes_max; /* what one slot must hold */
  uint32_t connected;       /* 1 or 0 */
  uint32_t pending;         /* accepted saves that are not copied yet */
  holdfast_code last_error;
  uint32_t reserved;
  uint64_t records_dropped; /* operations and transfers that found no room or made no sense */
} holdfast_stats;

/* Never blocks. Only the fields within stats->struct_size are written. */
HOLDFAST_API holdfast_code holdfast_get_stats(holdfast_client* client, holdfast_stats* stats);

/* Waits up to timeout_ms until the accepted saves are sealed by the agent (from then on they
 * outlive this process), says goodbye and frees the client, whatever it returns. Returns the first
 * asynchronous error of the client's life, or DeadlineExceeded naming what was not flushed. NULL is
 * OK. In a forked child it frees nothing and returns FailedPrecondition.
 * A copy of device tensors that is under way is waited for two seconds longer; then, as when the
 * GPU hangs, the client's memory stays mapped and its connection open until the process ends. */
HOLDFAST_API holdfast_code holdfast_close(holdfast_client* client, uint64_t timeout_ms,
                                          holdfast_error* error);

#ifdef __cplusplus
}
#endif

#endif /* HOLDFAST_HOLDFAST_H_ */
