#ifndef HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_
#define HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_

#include <stddef.h>
#include <stdint.h>

/*
 * The contract between the client library and a device backend: a shared library that copies
 * between the memory of devices and slots. The client library loads libholdfast-NAME.so of the
 * chosen backend from its own directory, and only when a tensor is on a device. The interface is
 * plain C, so that the two may be built separately. The library checks `abi` before it reads
 * anything else.
 *
 * Return values are holdfast_code numbers. On failure `text` (of text_bytes bytes, NUL-terminated)
 * gets what is wrong and what to do. No function throws, exits, or changes the caller's current
 * device.
 *
 * One save:   mark (caller's thread, inside holdfast_save: never blocks)
 *             start (worker thread: enqueues the first copies, never blocks)
 *             wait_pieces (worker thread, until all are done)
 *             guard (caller's thread, inside holdfast_guard: when is_queued has returned 1, or
 *                    after a failure of wait_pieces; blocks only during the capture of a graph)
 *             finish (worker thread) or, if start was never called, drop_mark
 * guard may run at the same time as wait_pieces; finish runs after both.
 */

#define HOLDFAST_DEVICE_COPIER_ABI 3u
#define HOLDFAST_DEVICE_COPIER_SYMBOL "holdfast_device_copier_table"

#ifdef __cplusplus
extern "C" {
#endif

/* A contiguous run of bytes between a device tensor and a slot. */
typedef struct holdfast_device_piece {
  void* device_memory;
  uint64_t slot_offset; /* from the `slot` pointer of the call; not aligned */
  uint64_t bytes;       /* at least 1 */
  int32_t device_index;
  int32_t reserved;
} holdfast_device_piece;

typedef struct holdfast_device_context holdfast_device_context; /* one per client */
typedef struct holdfast_device_mark holdfast_device_mark;       /* a point on the caller's stream */
typedef struct holdfast_device_copy holdfast_device_copy;       /* the copies of one save */

typedef struct holdfast_device_copier {
  uint32_t abi; /* HOLDFAST_DEVICE_COPIER_ABI */
  uint32_t struct_size;

  /* Opens a context (streams, events) for tensors on these devices. Unsupported: no driver or no
   * device. */
  int32_t (*open)(const int32_t* device_indices, size_t count, holdfast_device_context** context,
                  char* text, size_t text_bytes);
  /* Closes a context without running copies. */
  void (*close)(holdfast_device_context* context);

  /* Pins the mapping of the slots for fast copies, once per mapping. The client calls unpin before
   * it unmaps. After a failure, which the client logs, copies go through unpinned memory. */
  int32_t (*pin)(holdfast_device_context* context, void* memory, uint64_t bytes, char* text,
                 size_t text_bytes);
  void (*unpin)(holdfast_device_context* context, void* memory);

  /* Records the point of `stream`, a stream of the backend, after which the tensors may be read.
   * NULL, here and in guard: the default streams of all devices of the context. FailedPrecondition:
   * the stream is being captured in a graph. */
  int32_t (*mark)(holdfast_device_context* context, void* stream, holdfast_device_mark** mark,
                  char* text, size_t text_bytes);
  void (*drop_mark)(holdfast_device_context* context, holdfast_device_mark* mark);

  /* Enqueues device → slot copies in the given order after `mark`: all of them, or as many as fit
   * into the queues of the device. Takes ownership of `mark`, also on failure. `pieces` stays valid
   * until finish. */
  int32_t (*start)(holdfast_device_context* context, holdfast_device_mark* mark,
                   const holdfast_device_piece* pieces, size_t count, void* slot,
                   holdfast_device_copy** copy, char* text, size_t text_bytes);
  /* Blocks until the first `want` pieces are in the slot, and enqueues further copies as earlier
   * ones end. `*done` gets how many pieces are in the slot (>= want when OK). Reports a failed copy
   * when no other copy is running any more. DataLoss, with the last piece: samples of the tensors
   * differ from the copy, so the tensors changed during the copy. */
  int32_t (*wait_pieces)(holdfast_device_copy* copy, size_t want, size_t* done, char* text,
                         size_t text_bytes);
  /* Returns 1 when all copies are enqueued, otherwise 0. */
  int32_t (*is_queued)(const holdfast_device_copy* copy);
  /* Makes work that is queued on `stream` from now on begin after all of `copy` has read its
   * tensors. When the stream is being captured in a graph, blocks until the tensors are read. */
  int32_t (*guard)(holdfast_device_copy* copy, void* stream, char* text, size_t text_bytes);
  /* Waits for copies that still run and frees `copy`. */
  void (*finish)(holdfast_device_copy* copy);

  /* Copies slot → device, after all work queued on the devices. Returns when all bytes are on the
   * devices. */
  int32_t (*restore)(holdfast_device_context* context, const holdfast_device_piece* pieces,
                     size_t count, const void* slot, char* text, size_t text_bytes);

  /* Returns the size in bytes below which runs are copied into a pinned slot by a kernel instead of
   * a copy engine; the least of all devices. Measured by open. 0: copy engines copy everything. */
  uint64_t (*gather_below)(const holdfast_device_context* context);
} holdfast_device_copier;

/* The function that the plugin exports as HOLDFAST_DEVICE_COPIER_SYMBOL. Returns the plugin's
 * table, which stays valid until the process ends. */
typedef const holdfast_device_copier* (*holdfast_device_copier_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_ */
