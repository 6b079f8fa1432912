#ifndef HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_
#define HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_

#include <stddef.h>
#include <stdint.h>

/*
 * The contract between the client library and libholdfast-cuda.so, the only part that knows a GPU.
 * The library loads it from its own directory, and only when a tensor has a device pointer. Plain
 * C, so that the two may be built apart; `abi` is checked before anything else is read.
 *
 * Return values are holdfast_code numbers; on failure `text` (of text_bytes bytes, NUL-terminated)
 * says what is wrong and what to do. Nothing throws, exits, or changes the caller's current device.
 *
 * One save:   mark (caller's thread, inside holdfast_save: never blocks)
 *             start (worker thread: enqueues every copy, never blocks)
 *             guard (caller's thread, inside holdfast_guard: at any time after start, never blocks
 *                    but during the capture of a graph)
 *             wait_pieces (worker thread, until all are done)
 *             finish (worker thread) or, if start was never called, drop_mark
 * guard may run at the same time as wait_pieces; finish runs after both.
 */

#define HOLDFAST_DEVICE_COPIER_ABI 1u
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

typedef struct holdfast_device_context holdfast_device_context; /* one a client */
typedef struct holdfast_device_mark holdfast_device_mark;       /* a point on the caller's stream */
typedef struct holdfast_device_copy holdfast_device_copy;       /* copies under way */

typedef struct holdfast_device_copier {
  uint32_t abi; /* HOLDFAST_DEVICE_COPIER_ABI */
  uint32_t struct_size;

  /* A context for tensors on these devices: streams, events. Unsupported: no driver or no device.
   */
  int32_t (*open)(const int32_t* device_indices, size_t count, holdfast_device_context** context,
                  char* text, size_t text_bytes);
  /* No copies are under way. */
  void (*close)(holdfast_device_context* context);

  /* Pins the mapping of the slots for fast copies, once per mapping; unpin comes before it is
   * unmapped. A failure is logged, and copies go on through unpinned memory. */
  int32_t (*pin)(holdfast_device_context* context, void* memory, uint64_t bytes, char* text,
                 size_t text_bytes);
  void (*unpin)(holdfast_device_context* context, void* memory);

  /* Records the point of `stream` (a cudaStream_t) after which the tensors may be read. NULL, here
   * and in guard: the default streams of all devices of the context. FailedPrecondition: the stream
   * is being captured in a graph. */
  int32_t (*mark)(holdfast_device_context* context, void* stream, holdfast_device_mark** mark,
                  char* text, size_t text_bytes);
  void (*drop_mark)(holdfast_device_context* context, holdfast_device_mark* mark);

  /* Enqueues device → slot copies in the given order after `mark`, which it takes over, also on
   * failure. `pieces` stays valid until finish. */
  int32_t (*start)(holdfast_device_context* context, holdfast_device_mark* mark,
                   const holdfast_device_piece* pieces, size_t count, void* slot,
                   holdfast_device_copy** copy, char* text, size_t text_bytes);
  /* Blocks until the first `want` pieces lie in the slot; `*done` (>= want when OK) is how many do.
   * A failed copy gives an error, once no other is under way. DataLoss: with the last piece, where
   * samples of the tensors are not what was copied, so that they changed meanwhile. */
  int32_t (*wait_pieces)(holdfast_device_copy* copy, size_t want, size_t* done, char* text,
                         size_t text_bytes);
  /* Work queued on `stream` from now on begins after all of `copy` has read its tensors. Where the
   * stream is being captured in a graph it blocks until that is so. */
  int32_t (*guard)(holdfast_device_copy* copy, void* stream, char* text, size_t text_bytes);
  /* Waits for what is still under way and frees `copy`. */
  void (*finish)(holdfast_device_copy* copy);

  /* Slot → device, after all that the devices have been given to do. Returns when all bytes are
   * there. */
  int32_t (*restore)(holdfast_device_context* context, const holdfast_device_piece* pieces,
                     size_t count, const void* slot, char* text, size_t text_bytes);
} holdfast_device_copier;

/* What the plugin exports under HOLDFAST_DEVICE_COPIER_SYMBOL: its table, valid for ever. */
typedef const holdfast_device_copier* (*holdfast_device_copier_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* HOLDFAST_CLIENT_CORE_DEVICE_COPIER_H_ */
