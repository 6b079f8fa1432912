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
 * OWNERSHIP, one rule. Arguments belong to the caller: the library reads them during the call and
 * copies what it needs later. The one exception is the memory of the tensors. The caller owns that
 * memory too, but the library reads it between holdfast_save and holdfast_guard and writes it
 * during holdfast_restore. It must stay valid until holdfast_close returns. Results belong to the
 * library. They are valid until the object that returned them (client, restored, reader) is closed
 * or freed.
 *
 * ERRORS. Every fallible function returns a holdfast_code and, when `error` is not NULL, fills it.
 * An operation that failed in the background is reported once, by the next holdfast_save or
 * holdfast_guard. That call has also done its own work, and sets `error->asynchronous` to 1.
 * holdfast_close reports the first such error again. Training may go on after any error.
 *
 * THREADS. Several threads may call functions of one client concurrently. No call may overlap or
 * follow holdfast_close. The library's own threads block all signals.
 * After fork() the child's calls return HOLDFAST_FAILED_PRECONDITION and do nothing.
 *
 * COMPATIBILITY. Structures that the caller fills begin with their size, so that a program built
 * against an older header keeps working. Zero means the default in every field. Numbers never
 * change their meaning.
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

/* The version of this header. holdfast_api_version() returns the version of the loaded library. */
#define HOLDFAST_API_VERSION 5u

/* ------------------------------------------------------------------------------------- errors */

typedef int32_t holdfast_code;
enum {
  HOLDFAST_OK = 0,
  HOLDFAST_INVALID_ARGUMENT = 1,    /* the arguments are wrong; the same call always fails */
  HOLDFAST_NOT_FOUND = 2,           /* restore: the job has no version yet, start fresh */
  HOLDFAST_ALREADY_EXISTS = 3,      /* that step is saved already */
  HOLDFAST_PERMISSION_DENIED = 4,   /* the message names path, owner and mode */
  HOLDFAST_FAILED_PRECONDITION = 5, /* not possible in this state, or in a forked child */
  HOLDFAST_RESOURCE_EXHAUSTED = 6,  /* no free slot, or the state is too large; see the message */
  HOLDFAST_OUT_OF_SPACE = 7,        /* the disk of the node is full */
  HOLDFAST_IO_ERROR = 8,
  HOLDFAST_DATA_LOSS = 9,    /* bytes do not match their checksum */
  HOLDFAST_UNAVAILABLE = 10, /* no connection to the agent; the client retries in the background */
  HOLDFAST_DEADLINE_EXCEEDED = 11,
  HOLDFAST_ABORTED = 12, /* superseded by a newer version */
  HOLDFAST_FENCED = 13,  /* a newer start of this job is running: this process must stop */
  HOLDFAST_UNSUPPORTED = 14,
  HOLDFAST_CANCELLED = 15,
  HOLDFAST_INTERNAL = 16 /* a defect in Holdfast; please report it */
};

#define HOLDFAST_MESSAGE_BYTES 4096

typedef struct holdfast_error {
  holdfast_code code;
  uint32_t asynchronous; /* 1: an earlier operation failed; the call itself did its work */
  uint64_t step;         /* when asynchronous: the step of the operation that failed */
  char message[HOLDFAST_MESSAGE_BYTES]; /* what is wrong and what to do; "" when OK */
} holdfast_error;

/* Returns the name of a code, such as "NotFound" for HOLDFAST_NOT_FOUND, and "Unknown" for any
 * other number. Never NULL. */
HOLDFAST_API const char* holdfast_code_name(holdfast_code code);
/* Returns the library's HOLDFAST_API_VERSION. */
HOLDFAST_API uint32_t holdfast_api_version(void);
/* Returns the library's release, such as "0.1.0". */
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

/* Where a tensor's memory is. HOLDFAST_DEVICE: on a device of the device backend that the options
 * choose. */
enum { HOLDFAST_HOST = 0, HOLDFAST_DEVICE = 1, HOLDFAST_CUDA = HOLDFAST_DEVICE };

/* Where a version is safe. HOLDFAST_SEALED is weaker than any tier: this rank's own shard is
 * complete and checksummed in its node's memory. The shards of other ranks may be in any state. */
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
  uint32_t device;              /* HOLDFAST_HOST or HOLDFAST_DEVICE */
  int32_t device_index;         /* the backend's number of the device */
  const uint64_t* global_shape; /* shape of the tensor that this is a slice of; NULL: not sliced */
  const uint64_t* offset;       /* of this slice in the global tensor; NULL: zeros */
  uint64_t reserved[4];
} holdfast_tensor;

/* A small named byte string that belongs to a version: RNG, scheduler, data position. */
typedef struct holdfast_extra {
  const char* name; /* [A-Za-z0-9._-]{1,128}, unique in one save */
  const void* data;
  uint64_t bytes;
} holdfast_extra;

/* What a save does when no slot is free. */
enum {
  HOLDFAST_SKIP = 0, /* does not save this step, and counts it in the statistics */
  HOLDFAST_WAIT = 1  /* waits in the background for a slot, at most wait_ms; then skips */
};

enum {
  HOLDFAST_LOG_DEBUG = 0,
  HOLDFAST_LOG_INFO = 1,
  HOLDFAST_LOG_WARN = 2,
  HOLDFAST_LOG_ERROR = 3
};
/* The library calls this from any thread, but from one at a time. Must not call into the client. */
typedef void (*holdfast_log_fn)(void* context, int level, const char* message);

typedef struct holdfast_options {
  size_t struct_size;      /* sizeof(holdfast_options) */
  const char* socket_path; /* NULL: $HOLDFAST_SOCKET, else /run/holdfast/agent.sock */
  const char* job;         /* required; [A-Za-z0-9._-]{1,128} */
  /* Names this start of the job. The launcher chooses a new one at each start and gives the same
   * one to all ranks. NULL: $HOLDFAST_RUN_ID; when that is also unset, a random ID if world is 1,
   * otherwise an error. */
  const char* run_id;
  uint32_t rank;
  uint32_t world;              /* required, at least 1 */
  uint32_t slots;              /* versions held in memory at once, at least 2; 0: 3 */
  uint32_t when_full;          /* HOLDFAST_SKIP or HOLDFAST_WAIT */
  uint32_t wait_ms;            /* for HOLDFAST_WAIT; 0: 1000 */
  uint32_t connect_timeout_ms; /* how long holdfast_open waits for the agent; 0: 10000 */
  uint32_t agent_timeout_ms;   /* how long a save waits for the agent's answer; 0: 500 */
  uint32_t start_offline;      /* 1: holdfast_open succeeds without an agent; the client retries */
  uint64_t extra_bytes_max;    /* bytes reserved for the extras of one save; 0: 1 MiB */
  uint32_t extra_count_max;    /* extras of one save; 0: 16 */
  uint32_t copy_threads;       /* threads that restore host tensors; 0: 2 */
  holdfast_log_fn log;         /* NULL: silent */
  void* log_context;
  /* The device backend, for tensors on devices: the library libholdfast-NAME.so in the directory of
   * libholdfast.so. [a-z0-9]{1,16}. NULL: $HOLDFAST_DEVICE_BACKEND, else "cuda". */
  const char* device_backend;
  /* The format of the versions' headers: 1, or 2, which is shorter. Choose 2 only when no program
   * of a release without format 2 has to read the versions. 0: $HOLDFAST_IMAGE_FORMAT, else 1. */
  uint32_t image_format;
} holdfast_options;

#define HOLDFAST_OPTIONS_INIT \
  { sizeof(holdfast_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ------------------------------------------------------------------------------------- client */

typedef struct holdfast_client holdfast_client;

/* Connects to this node's agent and describes the state once. The agent reserves memory for `slots`
 * copies of the state, which can take some time for many gigabytes.
 *   InvalidArgument: the message names every defect of options and tensors. ResourceExhausted: the
 *   state does not fit the agent's arena (the message has the numbers). PermissionDenied, Fenced.
 *   Unavailable: no agent within connect_timeout_ms (with start_offline this is OK instead).
 * Blocks at most connect_timeout_ms, counted again from each of the agent's reports that it is
 * reserving the memory. `*client` is NULL on error. */
HOLDFAST_API holdfast_code holdfast_open(const holdfast_options* options,
                                         const holdfast_tensor* tensors, size_t tensor_count,
                                         holdfast_client** client, holdfast_error* error);

/* Returns OK while connected, otherwise the reason (Unavailable, Fenced, …). Never blocks. */
HOLDFAST_API holdfast_code holdfast_connection(holdfast_client* client, holdfast_error* error);

typedef struct holdfast_save_options {
  size_t struct_size; /* sizeof(holdfast_save_options) */
  const holdfast_extra* extras;
  size_t extra_count;
  /* A stream of the device backend (CUDA: a cudaStream_t): device tensors are copied after the
   * work queued on this stream so far. NULL: after the work on the default streams of all devices
   * that hold tensors. */
  void* stream;
  /* Not 0: when no slot is free, this save waits in the background for at most this time, whatever
   * the client's policy is. Use it for an important version, such as the last. holdfast_guard waits
   * for this save too. */
  uint32_t wait_ms;
  uint32_t reserved;
} holdfast_save_options;

/* Saves all tensors as version `step` of this start of the job. Returns at once, without waiting
 * for the agent or the copy. The tensors must not change until holdfast_guard returns. Steps must
 * increase. `options` may be NULL.
 *   Unavailable: not connected, this step is not saved. ResourceExhausted: the queue of unfinished
 *   saves is full, or the extras exceed extra_bytes_max. AlreadyExists: `step` is not greater than
 *   the last one. Fenced.
 * holdfast_wait and the statistics show what became of an accepted save. If that save fails, the
 * next holdfast_save or holdfast_guard also reports the failure. */
HOLDFAST_API holdfast_code holdfast_save(holdfast_client* client, uint64_t step,
                                         const holdfast_save_options* options,
                                         holdfast_error* error);

/* Call before the tensors change. Returns when no copy reads host tensors any more, and makes
 * `stream` (as in holdfast_save; ignored without device tensors) wait for the
 * copies of device tensors.
 * Blocks for this process's own copy of host tensors, and until all copies of device tensors are
 * queued on the device: at once for a small state, until the last of them begin for a large one. If
 * the agent has not yet granted a slot, blocks at most agent_timeout_ms plus the time that the save
 * may wait for a slot; then the save is skipped. */
HOLDFAST_API holdfast_code holdfast_guard(holdfast_client* client, void* stream,
                                          holdfast_error* error);

/* What a training process can be doing besides ordinary steps. */
enum {
  HOLDFAST_PHASE_COLLECTIVE = 1, /* ranks communicate; Holdfast's own traffic yields */
  /* Work that completes no step; the phase keeps it from being taken for a hang: */
  HOLDFAST_PHASE_INIT = 2,
  HOLDFAST_PHASE_COMPILE = 3,
  HOLDFAST_PHASE_CHECKPOINT = 4,
  HOLDFAST_PHASE_EVALUATION = 5
};

/* Mark the beginning and the end of a phase, from any thread. Phases nest, and phases of different
 * threads may overlap. Each call costs some stores to memory, without a system call or a lock. The
 * calls cannot fail, with or without an agent. A missing or wrong call costs time, never data: the
 * agent yields for a bounded time and drops the phases of an ended process. Unknown numbers, a NULL
 * client and an end without a begin do nothing. */
HOLDFAST_API void holdfast_phase_begin(holdfast_client* client, uint32_t phase);
HOLDFAST_API void holdfast_phase_end(holdfast_client* client, uint32_t phase);

/* -------------------------------------------------------------------------------- collectives
 *
 * Records of this process's steps and communication, from which Holdfast finds the rank that hangs
 * or is slow: which operations have begun and not ended, which peers transfers wait for, and which
 * ranks come late. For jobs on NCCL, NCCL_PROFILER_PLUGIN=holdfast makes these records. Such jobs
 * call only holdfast_step, and need not call even that if they save, since a save also counts as a
 * step. Other programs call the functions below.
 *
 * Any thread may call the functions. They store to memory in about 50 ns, without waiting and
 * without a system call. Only describe and forget take a lock, and only describe can fail. Records
 * that find no room are dropped and counted (holdfast_stats). A NULL client means this process's
 * first client, present or future, so that a library without a client can record. Indices are
 * places in a communicator, counted from 0. Times are nanoseconds. */

/* Records that the trainer begins `step`, which ends the step before. The same step again changes
 * nothing. */
HOLDFAST_API void holdfast_step(holdfast_client* client, uint64_t step);

/* What a communicator is for. Communicators of the same role are compared with each other. */
enum {
  HOLDFAST_ROLE_UNKNOWN = 0,
  HOLDFAST_ROLE_DATA = 1, /* replicas */
  HOLDFAST_ROLE_TENSOR = 2,
  HOLDFAST_ROLE_PIPELINE = 3,
  HOLDFAST_ROLE_EXPERT = 4
};

typedef struct holdfast_communicator {
  size_t struct_size; /* sizeof(holdfast_communicator) */
  /* The same number on all members, and a different one for each communicator. 0 is all ranks of
   * the job, by rank, and need not be described. */
  uint64_t id;
  uint32_t size;           /* members */
  uint32_t index;          /* this process's place */
  const uint32_t* members; /* `size` ranks of the job, by index; NULL: not known here */
  uint32_t role;           /* HOLDFAST_ROLE_DATA, … */
  uint32_t reserved;
} holdfast_communicator;

/* Describes a communicator, before its first operation. Describing an id again replaces the earlier
 * description.
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
  /* With numbered 1: the operation's number among those of its kind in the communicator, from 0,
   * the same on all members. Otherwise the library counts. */
  uint64_t sequence;
  uint64_t bytes; /* of this rank's part */
  uint32_t kind;  /* HOLDFAST_ALL_REDUCE, … */
  uint32_t dtype; /* HOLDFAST_F32, … */
  uint32_t peer;  /* index of the root or of the other end; HOLDFAST_NO_PEER */
  uint32_t algorithm;
  uint32_t protocol;
  uint32_t channels;
  uint32_t numbered;
  uint32_t deferred; /* 1: only enqueued; holdfast_collective_started marks its start */
  uint32_t source;   /* 0: the program, 1: the NCCL plugin */
  uint32_t reserved;
} holdfast_collective;

/* Names an operation in flight. 0: not recorded. The functions below accept any number. */
typedef uint64_t holdfast_operation;

HOLDFAST_API holdfast_operation holdfast_collective_begin(holdfast_client* client,
                                                          const holdfast_collective* collective);
HOLDFAST_API void holdfast_collective_started(holdfast_client* client,
                                              holdfast_operation operation);
/* Records, before the end, how long the operation ran by the device's own timer. */
HOLDFAST_API void holdfast_collective_device_time(holdfast_client* client,
                                                  holdfast_operation operation, uint64_t ns);
HOLDFAST_API void holdfast_collective_end(holdfast_client* client, holdfast_operation operation);
/* Ends an operation whose end was not observed. Its duration is not used. */
HOLDFAST_API void holdfast_collective_abandon(holdfast_client* client,
                                              holdfast_operation operation);

enum { HOLDFAST_DIRECTION_SEND = 0, HOLDFAST_DIRECTION_RECEIVE = 1 };

/* A completed transfer with a peer, and where its time was spent. Transfers are summed by
 * (communicator, peer, direction). */
typedef struct holdfast_transfer {
  size_t struct_size; /* sizeof(holdfast_transfer) */
  uint64_t communicator;
  uint32_t peer;
  uint32_t direction;
  uint64_t bytes;
  uint64_t gpu_wait_ns;  /* waiting for this rank's GPU to produce or consume the data */
  uint64_t peer_wait_ns; /* waiting for the peer: for a free buffer, or for the first data */
  uint64_t transfer_ns;  /* on the wire */
  uint64_t flush_ns;     /* from the receipt until the data is in the GPU's memory */
} holdfast_transfer;

HOLDFAST_API void holdfast_peer_transfer(holdfast_client* client,
                                         const holdfast_transfer* transfer);

/* What the current transfer waits for. */
enum {
  HOLDFAST_EDGE_IDLE = 0, /* no transfer */
  HOLDFAST_EDGE_SEND_GPU_WAIT = 1,
  HOLDFAST_EDGE_SEND_PEER_WAIT = 2,
  HOLDFAST_EDGE_SEND_WAIT = 3,
  HOLDFAST_EDGE_RECEIVE_WAIT = 4,
  HOLDFAST_EDGE_RECEIVE_FLUSH_WAIT = 5,
  HOLDFAST_EDGE_RECEIVE_GPU_WAIT = 6
};
HOLDFAST_API void holdfast_peer_state(holdfast_client* client, uint64_t communicator, uint32_t peer,
                                      uint32_t direction, uint32_t state);

/* The same for a transfer of an operation in flight. `completed` is how many transfers with this
 * peer and in this direction the operation has completed. Holdfast compares the numbers of all
 * ranks to find the connection at which an operation hangs. */
HOLDFAST_API void holdfast_operation_edge(holdfast_client* client, holdfast_operation operation,
                                          uint32_t peer, uint32_t direction, uint32_t state,
                                          uint64_t completed);

/* Returns 1 while Holdfast requests the transfers of operations that begin now, otherwise 0. For
 * callers for which it is expensive to record transfers. */
HOLDFAST_API uint32_t holdfast_sampling(holdfast_client* client);

/* Waits until `step` or a later step of this start is committed at `tier`. From then on, training
 * up to `step` survives the failures that the tier survives. With HOLDFAST_SEALED: waits until this
 * step itself is sealed. With timeout_ms 0: returns the state without waiting.
 *   ResourceExhausted: that step was skipped. Aborted: a newer version superseded it, and none was
 *   committed in time. NotFound: this client never saved that step, or saved it more than 1024
 *   saves ago.
 *   DeadlineExceeded. Any other code: the save failed. */
HOLDFAST_API holdfast_code holdfast_wait(holdfast_client* client, uint64_t step, uint32_t tier,
                                         uint64_t timeout_ms, holdfast_error* error);

typedef struct holdfast_version {
  uint64_t incarnation; /* counts the starts of the job, from 1 */
  uint64_t step;
} holdfast_version;

/* Gets the newest version whose commit at `tier` the agent has reported to this client. NotFound:
 * none. Never blocks. */
HOLDFAST_API holdfast_code holdfast_latest(holdfast_client* client, uint32_t tier,
                                           holdfast_version* version, holdfast_error* error);

typedef struct holdfast_restored {
  holdfast_version version;
  uint64_t bytes; /* of tensors and extras */
  uint32_t tier;  /* where this rank's shard came from */
  uint32_t extra_count;
  const holdfast_extra* extras; /* each `data` is followed by a zero byte not counted in `bytes` */
} holdfast_restored;

/* Fills the tensors from version `wanted`. NULL: from the newest version that every rank of the job
 * can restore; the coordinator decides once for all ranks. Waits up to timeout_ms, which includes
 * the wait for a missing agent. Free `*restored` with holdfast_restored_free. `restored` may be
 * NULL.
 *   NotFound: the job has no version to restore: a fresh start. With `wanted`, NotFound: there is
 *   no such committed version. InvalidArgument: the saved state differs from the description; see
 *   holdfast_difference; no tensor was changed. Unavailable, DeadlineExceeded: the version could
 *   not be determined; this is not a fresh start. */
HOLDFAST_API holdfast_code holdfast_restore(holdfast_client* client, const holdfast_version* wanted,
                                            uint64_t timeout_ms, holdfast_restored** restored,
                                            holdfast_error* error);
HOLDFAST_API void holdfast_restored_free(holdfast_restored* restored);

/* Returns how many differences the latest holdfast_restore or holdfast_reader_load found. */
HOLDFAST_API size_t holdfast_difference_count(holdfast_client* client);
/* Returns one difference as a sentence, or NULL when `index` is out of range. Valid until the next
 * holdfast_restore or holdfast_reader_load. */
HOLDFAST_API const char* holdfast_difference(holdfast_client* client, size_t index);

/* ------------------------------------------------------------------------------------ readers
 *
 * A reader gives access to all shards of a version. With a reader, a version can be restored into
 * more or fewer ranks than saved it, or into ranks that hold other slices (reshard). */

typedef struct holdfast_reader holdfast_reader;

/* One tensor of one shard, as the rank that saved it described it. */
typedef struct holdfast_piece {
  const char* name;
  uint32_t rank; /* in the world that saved it */
  uint32_t dtype;
  uint32_t dimensions;
  uint32_t reserved;
  const uint64_t* shape;
  const uint64_t* global_shape; /* equals shape when the tensor was not sliced */
  const uint64_t* offset;       /* zeros when the tensor was not sliced */
} holdfast_piece;

typedef struct holdfast_rank_extra {
  uint32_t rank;
  uint32_t reserved;
  holdfast_extra extra; /* `data` is followed by a zero byte not counted in `bytes` */
} holdfast_rank_extra;

typedef struct holdfast_reader_info {
  holdfast_version version;
  uint32_t tier;  /* the farthest tier that a shard is read from */
  uint32_t world; /* number of ranks that saved it */
  const holdfast_piece* pieces;
  size_t piece_count;
  const holdfast_rank_extra* extras;
  size_t extra_count;
} holdfast_reader_info;

/* Opens version `wanted`, or with NULL the newest version that the whole job can restore, of any
 * world size. The coordinator decides once for all ranks of a start, together with
 * holdfast_restore, so that all ranks get the same version. Opening reads the header of this rank's
 * own shard and moves no tensors: a load reads what it needs. `*reader` is NULL on error. Close a
 * reader before its client.
 *   NotFound: the job has no version to restore: a fresh start. With `wanted`, NotFound: there is
 *   no such committed version. Unavailable, DeadlineExceeded: the version could not be determined;
 *   this is not a fresh start. */
HOLDFAST_API holdfast_code holdfast_reader_open(holdfast_client* client,
                                                const holdfast_version* wanted, uint32_t timeout_ms,
                                                holdfast_reader** reader, holdfast_error* error);

/* Returns what this rank's own shard contains, and the version, tier and world. In a world of
 * another size: the shard of rank (own rank modulo world). Never blocks. Valid until the reader is
 * closed. NULL for NULL. */
HOLDFAST_API const holdfast_reader_info* holdfast_reader_own(const holdfast_reader* reader);

/* Reads what the shards of all ranks contain, unless an earlier call has. The time and the memory
 * for this grow with the world times the number of tensors. A load does not need it. */
HOLDFAST_API holdfast_code holdfast_reader_list(holdfast_reader* reader, uint32_t timeout_ms,
                                                holdfast_error* error);

/* Returns what the shards of all ranks contain; valid until the reader is closed. NULL for NULL.
 * The first call does what holdfast_reader_list does, for at most the time-out of the open. If that
 * fails, `piece_count` and `extra_count` are 0; call holdfast_reader_list for the reason. */
HOLDFAST_API const holdfast_reader_info* holdfast_reader_get(const holdfast_reader* reader);

/* Returns each tensor of the version once in `*info`: the first piece of the lowest rank that has
 * it. `*info` has no extras; it is valid until the reader is closed. The time and the memory for
 * this grow with the number of tensors, and with the world only where each rank saved a tensor
 * whose name ends in "@rank" and its number. */
HOLDFAST_API holdfast_code holdfast_reader_tensors(holdfast_reader* reader, uint32_t timeout_ms,
                                                   const holdfast_reader_info** info,
                                                   holdfast_error* error);

/* Returns the extra `name` of the shard of `rank` in the world that saved it; valid until the
 * reader is closed. NotFound: the shard has none of that name, or the world has no such rank. */
HOLDFAST_API holdfast_code holdfast_reader_extra(holdfast_reader* reader, uint32_t rank,
                                                 const char* name, uint32_t timeout_ms,
                                                 holdfast_extra* extra, holdfast_error* error);

/* Fills `tensors` from all pieces that overlap them. Each tensor is a box of a global tensor, given
 * by name, shape, global_shape and offset. The tensors need not be those of holdfast_open, and
 * several may have the same name. Pieces may overlap each other, as tensor replicas do; any of them
 * may be read. A load reads only the 1 MiB chunks that it needs, from where they are stored, and
 * verifies the checksum of each.
 *   FailedPrecondition: a tensor is missing, has another dtype or global shape, or has a box that
 *   the pieces do not cover. The message names each such tensor and box; see holdfast_difference.
 *   Nothing was written. Unsupported: tensors on a device. After any other error the tensors hold a
 *   mixture of old and new values.
 *   Unavailable (the connection to the agent was lost): try again. */
HOLDFAST_API holdfast_code holdfast_reader_load(holdfast_reader* reader,
                                                const holdfast_tensor* tensors, size_t count,
                                                uint32_t timeout_ms, holdfast_error* error);

HOLDFAST_API void holdfast_reader_close(holdfast_reader* reader);

/* Sets the calling thread's stop check. While the thread waits in holdfast_open, holdfast_wait,
 * holdfast_restore, holdfast_reader_open, holdfast_reader_load or holdfast_close, the library calls
 * `check` about every 100 ms, with no lock of the library held. When `check` does not return 0, the
 * wait ends with Cancelled (after a load the tensors hold a mixture). For interpreters, which
 * detect Ctrl-C this way. `check` must not call into the same client. NULL removes the check. */
HOLDFAST_API void holdfast_set_stop_check(int (*check)(void* context), void* context);

typedef struct holdfast_stats {
  size_t struct_size;        /* sizeof(holdfast_stats), set by the caller */
  uint64_t saves;            /* steps passed to holdfast_save */
  uint64_t skipped;          /* … of which not copied: no slot, no answer in time */
  uint64_t copied;           /* … of which copied completely */
  uint64_t sealed;           /* … of which sealed by the agent */
  uint64_t failed;           /* … of which lost for any other reason */
  uint64_t committed_memory; /* commits at the tier that the agent reported to this client */
  uint64_t committed_disk;
  uint64_t superseded;      /* versions superseded at some tier by a newer one */
  uint64_t reconnects;      /* connections after the first */
  uint64_t bytes_copied;    /* into slots */
  uint64_t copy_ns;         /* time spent copying */
  uint64_t guard_ns;        /* time callers were blocked in holdfast_guard */
  uint64_t incarnation;     /* of this start; 0 before the first connection */
  uint64_t image_bytes_max; /* size that one slot must have */
  uint32_t connected;       /* 1 or 0 */
  uint32_t pending;         /* accepted saves that are not copied yet */
  holdfast_code last_error;
  uint32_t reserved;
  uint64_t records_dropped; /* operations and transfers that were invalid or found no room */
  uint64_t gather_below;    /* a kernel copies runs of fewer device bytes; 0: none */
} holdfast_stats;

/* Gets the client's statistics. Never blocks. Writes only the fields within stats->struct_size. */
HOLDFAST_API holdfast_code holdfast_get_stats(holdfast_client* client, holdfast_stats* stats);

/* Waits up to timeout_ms until the agent has sealed the accepted saves (from then on they outlive
 * this process), then disconnects. Frees the client even if it fails. Returns the first
 * asynchronous error of the client's life, or DeadlineExceeded with the steps that were not sealed.
 * NULL is OK. In a forked child it frees nothing and returns FailedPrecondition.
 * A running copy of device tensors is given two seconds more. If it does not end, as when the GPU
 * hangs, the client's memory stays mapped and its connection open until the process ends. */
HOLDFAST_API holdfast_code holdfast_close(holdfast_client* client, uint64_t timeout_ms,
                                          holdfast_error* error);

#ifdef __cplusplus
}
#endif

#endif /* HOLDFAST_HOLDFAST_H_ */
