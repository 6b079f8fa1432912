#ifndef HOLDFAST_HOLDFAST_HPP_
#define HOLDFAST_HOLDFAST_HPP_

// Holdfast for C++20: checkpoints of a training process, kept where its failure cannot reach them.
// Header-only, over the C interface of holdfast.h, whose contracts apply unchanged. Errors are
// values. The only exception that can occur is std::bad_alloc from the standard containers.
//
//   holdfast::Options options{.job = "my-run", .rank = rank, .world = world};
//   std::vector<holdfast::Tensor> state = {
//       holdfast::Slice("weights", weights, {rows, columns}, {all_rows, columns}, {first_row, 0}),
//       holdfast::Whole("bias", bias, {columns}),
//   };
//   auto client = holdfast::Client::Open(options, state);
//   if (!client.ok()) Die(client.status().ToString());
//
//   auto restored = client->Restore();
//   if (restored.ok()) step = restored->version.step;
//   else if (restored.status().code() != holdfast::Code::kNotFound)
//     Die(restored.status().ToString());
//
//   while (step < steps) {
//     ComputeGradients();
//     client->Guard();                                   // before the tensors change
//     ApplyGradients();
//     client->Save(++step, {{"rng", rng.ToString()}});   // returns at once
//   }
//   Report(client->Close());

#include <holdfast/holdfast.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace holdfast {
// All names are holdfast::Name. Code that also includes Holdfast's internal headers, which use the
// same names, defines HOLDFAST_HPP_EXPLICIT_NAMESPACE and writes holdfast::v1::Name.
#ifndef HOLDFAST_HPP_EXPLICIT_NAMESPACE
inline
#endif
    namespace v1 {

enum class Code : int32_t {
  kOk = HOLDFAST_OK,
  kInvalidArgument = HOLDFAST_INVALID_ARGUMENT,
  kNotFound = HOLDFAST_NOT_FOUND,
  kAlreadyExists = HOLDFAST_ALREADY_EXISTS,
  kPermissionDenied = HOLDFAST_PERMISSION_DENIED,
  kFailedPrecondition = HOLDFAST_FAILED_PRECONDITION,
  kResourceExhausted = HOLDFAST_RESOURCE_EXHAUSTED,
  kOutOfSpace = HOLDFAST_OUT_OF_SPACE,
  kIoError = HOLDFAST_IO_ERROR,
  kDataLoss = HOLDFAST_DATA_LOSS,
  kUnavailable = HOLDFAST_UNAVAILABLE,
  kDeadlineExceeded = HOLDFAST_DEADLINE_EXCEEDED,
  kAborted = HOLDFAST_ABORTED,
  kFenced = HOLDFAST_FENCED,
  kUnsupported = HOLDFAST_UNSUPPORTED,
  kCancelled = HOLDFAST_CANCELLED,
  kInternal = HOLDFAST_INTERNAL,
};

/// A code and a message for the user.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  /// True when an earlier operation failed in the background and the call itself succeeded.
  bool asynchronous() const { return asynchronous_; }
  /// The step of the operation that failed asynchronously.
  uint64_t step() const { return step_; }
  std::string ToString() const {
    if (ok()) return "ok";
    return std::string(holdfast_code_name(static_cast<holdfast_code>(code_))) + ": " + message_;
  }
  /// Marks a status that the caller ignores on purpose.
  void Ignore() const {}

  static Status From(holdfast_code code, const holdfast_error& error) {
    if (code == HOLDFAST_OK) return {};
    Status status(static_cast<Code>(code), error.message);
    status.asynchronous_ = error.asynchronous != 0;
    status.step_ = error.step;
    return status;
  }

 private:
  Code code_ = Code::kOk;
  bool asynchronous_ = false;
  uint64_t step_ = 0;
  std::string message_;
};

/// A value, or the error that prevented it.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  /// Requires ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

enum class DType : uint32_t {
  kBool = HOLDFAST_BOOL,
  kU8 = HOLDFAST_U8,
  kI8 = HOLDFAST_I8,
  kF8E4M3 = HOLDFAST_F8_E4M3,
  kF8E5M2 = HOLDFAST_F8_E5M2,
  kU16 = HOLDFAST_U16,
  kI16 = HOLDFAST_I16,
  kF16 = HOLDFAST_F16,
  kBF16 = HOLDFAST_BF16,
  kU32 = HOLDFAST_U32,
  kI32 = HOLDFAST_I32,
  kF32 = HOLDFAST_F32,
  kU64 = HOLDFAST_U64,
  kI64 = HOLDFAST_I64,
  kF64 = HOLDFAST_F64,
  kC64 = HOLDFAST_C64,
};

enum class Tier : uint32_t {
  kSealed = HOLDFAST_SEALED,  // this rank's shard only, see holdfast.h
  kMemory = HOLDFAST_TIER_MEMORY,
  kPeer = HOLDFAST_TIER_PEER,
  kDisk = HOLDFAST_TIER_DISK,
  kRemote = HOLDFAST_TIER_REMOTE,
};

inline std::string_view ToString(Tier tier) {
  switch (tier) {
    case Tier::kSealed:
      return "sealed";
    case Tier::kMemory:
      return "memory";
    case Tier::kPeer:
      return "peer";
    case Tier::kDisk:
      return "disk";
    case Tier::kRemote:
      return "remote";
  }
  return "unknown";
}

/// What the process is doing; see holdfast_phase_begin.
enum class Phase : uint32_t {
  kCollective = HOLDFAST_PHASE_COLLECTIVE,
  kInit = HOLDFAST_PHASE_INIT,
  kCompile = HOLDFAST_PHASE_COMPILE,
  kCheckpoint = HOLDFAST_PHASE_CHECKPOINT,
  kEvaluation = HOLDFAST_PHASE_EVALUATION,
};

/// A kind of collective; see holdfast_collective.
enum class Kind : uint32_t {
  kOther = HOLDFAST_OTHER_COLLECTIVE,
  kAllReduce = HOLDFAST_ALL_REDUCE,
  kAllGather = HOLDFAST_ALL_GATHER,
  kReduceScatter = HOLDFAST_REDUCE_SCATTER,
  kBroadcast = HOLDFAST_BROADCAST,
  kReduce = HOLDFAST_REDUCE,
  kAllToAll = HOLDFAST_ALL_TO_ALL,
  kSend = HOLDFAST_SEND,
  kReceive = HOLDFAST_RECEIVE,
  kBarrier = HOLDFAST_BARRIER,
};

using Shape = std::vector<uint64_t>;

/// One tensor of this rank: dense and row-major. `data` is borrowed until the client is closed.
struct Tensor {
  std::string name;
  DType dtype = DType::kU8;
  void* data = nullptr;
  Shape shape = {};         // empty: a scalar
  Shape global_shape = {};  // empty: not sliced
  Shape offset = {};        // empty: zeros
  uint32_t device = HOLDFAST_HOST;
  int32_t device_index = 0;
};

/// The DType of a C++ type.
template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::kBool;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kF32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::kF64;
  else if constexpr (std::is_same_v<T, std::byte>)
    return DType::kU8;
  else {
    static_assert(std::is_integral_v<T>, "this type has no DType: set Tensor::dtype explicitly");
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1)
      return kSigned ? DType::kI8 : DType::kU8;
    else if constexpr (sizeof(T) == 2)
      return kSigned ? DType::kI16 : DType::kU16;
    else if constexpr (sizeof(T) == 4)
      return kSigned ? DType::kI32 : DType::kU32;
    else
      return kSigned ? DType::kI64 : DType::kU64;
  }
}

/// A complete tensor: only this rank has it, or several ranks have replicas of it.
template <typename T>
Tensor Whole(std::string name, T* data, Shape shape) {
  return {std::move(name), DTypeOf<T>(), data, std::move(shape), {}, {}};
}
template <typename T>
Tensor Whole(std::string name, std::vector<T>& data, Shape shape) {
  return Whole(std::move(name), data.data(), std::move(shape));
}

/// A slice: the box of `shape` at `offset` in a tensor of `global_shape` that several ranks share.
template <typename T>
Tensor Slice(std::string name, T* data, Shape shape, Shape global_shape, Shape offset) {
  return {std::move(name),         DTypeOf<T>(),     data, std::move(shape),
          std::move(global_shape), std::move(offset)};
}
template <typename T>
Tensor Slice(std::string name, std::vector<T>& data, Shape shape, Shape global_shape,
             Shape offset) {
  return Slice(std::move(name), data.data(), std::move(shape), std::move(global_shape),
               std::move(offset));
}

/// Small named state: text, JSON or any bytes. `bytes` is read during Save().
struct Extra {
  std::string name;
  std::string_view bytes;
};

enum class WhenFull : uint32_t { kSkip = HOLDFAST_SKIP, kWait = HOLDFAST_WAIT };
enum class LogLevel : int { kDebug, kInfo, kWarn, kError };

struct Options {
  std::string job = {};
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string run_id = {};       // empty: $HOLDFAST_RUN_ID
  std::string socket_path = {};  // empty: $HOLDFAST_SOCKET, else /run/holdfast/agent.sock
  uint32_t slots = 3;
  WhenFull when_full = WhenFull::kSkip;
  std::chrono::milliseconds wait{1000};  // for kWait
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds agent_timeout{500};
  bool start_offline = false;
  uint64_t extra_bytes_max = 1 << 20;
  uint32_t extra_count_max = 16;
  uint32_t copy_threads = 2;
  std::string device_backend = {};  // empty: $HOLDFAST_DEVICE_BACKEND, else "cuda"
  uint32_t image_format = 0;        // 1 or 2; 0: $HOLDFAST_IMAGE_FORMAT, else 1
  /// Called from any thread; must neither throw nor call into the client.
  std::function<void(LogLevel, std::string_view)> log = {};
};

struct Version {
  uint64_t incarnation = 0;
  uint64_t step = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
  /// "3-120", as the command line tool writes it.
  std::string ToString() const { return std::to_string(incarnation) + "-" + std::to_string(step); }
};

/// What Restore() returns in addition to the tensors.
struct Restored {
  Version version;
  Tier tier = Tier::kMemory;
  uint64_t bytes = 0;
  struct Item {
    std::string name;
    std::string bytes;
  };
  std::vector<Item> extras;

  /// Returns nullptr when the version has no such extra.
  const std::string* extra(std::string_view name) const {
    for (const Item& item : extras) {
      if (item.name == name) return &item.bytes;
    }
    return nullptr;
  }
};

namespace detail {
inline Status CheckDimensions(const Tensor& tensor) {
  bool global_fits =
      tensor.global_shape.empty() || tensor.global_shape.size() == tensor.shape.size();
  bool offset_fits = tensor.offset.empty() || tensor.offset.size() == tensor.shape.size();
  if (global_fits && offset_fits) return {};
  return Status(Code::kInvalidArgument,
                "tensor '" + tensor.name + "': shape has " + std::to_string(tensor.shape.size()) +
                    " dimensions, global_shape " + std::to_string(tensor.global_shape.size()) +
                    ", offset " + std::to_string(tensor.offset.size()));
}

inline holdfast_tensor ToC(const Tensor& tensor) {
  holdfast_tensor raw{};
  raw.name = tensor.name.c_str();
  raw.data = tensor.data;
  raw.shape = tensor.shape.data();
  raw.dimensions = static_cast<uint32_t>(tensor.shape.size());
  raw.dtype = static_cast<uint32_t>(tensor.dtype);
  raw.device = tensor.device;
  raw.device_index = tensor.device_index;
  raw.global_shape = tensor.global_shape.empty() ? nullptr : tensor.global_shape.data();
  raw.offset = tensor.offset.empty() ? nullptr : tensor.offset.data();
  return raw;
}

/// The result borrows from `tensors`.
inline Result<std::vector<holdfast_tensor>> ToC(std::span<const Tensor> tensors) {
  std::vector<holdfast_tensor> raw;
  raw.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    if (Status status = CheckDimensions(tensor); !status.ok()) return status;
    raw.push_back(ToC(tensor));
  }
  return raw;
}

/// Clamps a time-out to what the C interface takes.
inline uint32_t ToMilliseconds(std::chrono::milliseconds time) {
  constexpr int64_t kMost = UINT32_MAX;
  return static_cast<uint32_t>(time.count() < 0 ? 0 : time.count() > kMost ? kMost : time.count());
}
}  // namespace detail

/// One tensor of one shard of a version; see holdfast_piece.
struct Piece {
  std::string name;
  uint32_t rank = 0;
  DType dtype = DType::kU8;
  Shape shape;
  Shape global_shape;
  Shape offset;
};

/// Access to all shards of a version, which any number of ranks may have saved; see
/// holdfast_reader_open. Movable. Must be destroyed before its client.
class VersionReader {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Version version() const { return {own().version.incarnation, own().version.step}; }
  Tier tier() const { return static_cast<Tier>(own().tier); }
  /// Returns the number of ranks that saved the version.
  uint32_t world() const { return own().world; }

  /// See holdfast_reader_list.
  Status List(Milliseconds timeout = Milliseconds(120'000)) {
    holdfast_error error;
    return Status::From(
        holdfast_reader_list(reader_.get(), detail::ToMilliseconds(timeout), &error), error);
  }
  /// Returns the tensors of all shards; lists them first, as holdfast_reader_get does.
  std::vector<Piece> Pieces() const { return PiecesOf(info()); }
  /// Returns the tensors of this rank's own shard; see holdfast_reader_own.
  std::vector<Piece> OwnPieces() const { return PiecesOf(own()); }

  static std::vector<Piece> PiecesOf(const holdfast_reader_info& info) {
    std::vector<Piece> pieces;
    pieces.reserve(info.piece_count);
    for (size_t i = 0; i < info.piece_count; ++i) {
      const holdfast_piece& raw = info.pieces[i];
      const auto numbers = [&raw](const uint64_t* from) {
        return Shape(from, from + raw.dimensions);
      };
      pieces.push_back({raw.name, raw.rank, static_cast<DType>(raw.dtype), numbers(raw.shape),
                        numbers(raw.global_shape), numbers(raw.offset)});
    }
    return pieces;
  }

  /// Returns each tensor of the version once; see holdfast_reader_tensors.
  Result<std::vector<Piece>> Tensors(Milliseconds timeout = Milliseconds(120'000)) const {
    const holdfast_reader_info* once = nullptr;
    holdfast_error error;
    const holdfast_code code =
        holdfast_reader_tensors(reader_.get(), detail::ToMilliseconds(timeout), &once, &error);
    if (code != HOLDFAST_OK) return Status::From(code, error);
    return PiecesOf(*once);
  }

  /// Returns the extra state that `rank` of the saving world saved under `name`, if any; see
  /// holdfast_reader_extra.
  std::optional<std::string_view> extra(uint32_t rank, std::string_view name,
                                        Milliseconds timeout = Milliseconds(120'000)) const {
    holdfast_extra found;
    holdfast_error error;
    const holdfast_code code =
        holdfast_reader_extra(reader_.get(), rank, std::string(name).c_str(),
                              detail::ToMilliseconds(timeout), &found, &error);
    if (code != HOLDFAST_OK) return std::nullopt;
    return std::string_view(static_cast<const char*>(found.data), found.bytes);
  }

  /// See holdfast_reader_load.
  Status Load(std::span<const Tensor> tensors, Milliseconds timeout = Milliseconds(120'000)) {
    const auto raw = detail::ToC(tensors);
    if (!raw.ok()) return raw.status();
    holdfast_error error;
    return Status::From(holdfast_reader_load(reader_.get(), (*raw).data(), (*raw).size(),
                                             detail::ToMilliseconds(timeout), &error),
                        error);
  }

  const holdfast_reader_info& info() const { return *holdfast_reader_get(reader_.get()); }
  const holdfast_reader_info& own() const { return *holdfast_reader_own(reader_.get()); }

 private:
  friend class Client;
  explicit VersionReader(holdfast_reader* reader) : reader_(reader) {}

  struct Close {
    void operator()(holdfast_reader* reader) const { holdfast_reader_close(reader); }
  };
  std::unique_ptr<holdfast_reader, Close> reader_;
};

/// A connection of one rank to its node's agent. Movable. The destructor calls Close() with a
/// time-out of five seconds. Threads: as in holdfast.h.
class Client {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// See holdfast_open.
  static Result<Client> Open(const Options& options, std::span<const Tensor> state) {
    auto log = std::make_unique<LogFunction>(options.log);
    holdfast_options raw = ToC(options, log.get());
    const auto tensors = detail::ToC(state);
    if (!tensors.ok()) return tensors.status();
    holdfast_error error;
    holdfast_client* client = nullptr;
    holdfast_code code = holdfast_open(&raw, (*tensors).data(), (*tensors).size(), &client, &error);
    if (code != HOLDFAST_OK) return Status::From(code, error);
    return Client(client, std::move(log));
  }

  Client(Client&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), log_(std::move(other.log_)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      Close(Milliseconds(5000)).Ignore();
      client_ = std::exchange(other.client_, nullptr);
      log_ = std::move(other.log_);
    }
    return *this;
  }
  ~Client() { Close(Milliseconds(5000)).Ignore(); }

  /// See holdfast_save. `stream` is a cudaStream_t. `wait` is how long this save waits for a slot;
  /// zero means the client's policy.
  Status Save(uint64_t step, std::span<const Extra> extras = {}, void* stream = nullptr,
              Milliseconds wait = {}) {
    std::vector<holdfast_extra> raw;
    raw.reserve(extras.size());
    for (const Extra& extra : extras) {
      raw.push_back({extra.name.c_str(), extra.bytes.data(), extra.bytes.size()});
    }
    holdfast_save_options options{
        sizeof options, raw.data(), raw.size(), stream, static_cast<uint32_t>(Count(wait)), 0};
    holdfast_error error;
    return Status::From(holdfast_save(client_, step, &options, &error), error);
  }
  Status Save(uint64_t step, std::initializer_list<Extra> extras, void* stream = nullptr,
              Milliseconds wait = {}) {
    return Save(step, std::span<const Extra>(extras.begin(), extras.size()), stream, wait);
  }

  /// See holdfast_guard: call before the tensors change.
  Status Guard(void* stream = nullptr) {
    holdfast_error error;
    return Status::From(holdfast_guard(client_, stream, &error), error);
  }

  /// See holdfast_phase_begin. A PhaseScope calls BeginPhase() and EndPhase().
  void BeginPhase(Phase phase) noexcept {
    holdfast_phase_begin(client_, static_cast<uint32_t>(phase));
  }
  void EndPhase(Phase phase) noexcept { holdfast_phase_end(client_, static_cast<uint32_t>(phase)); }

  /// See holdfast_step.
  void Step(uint64_t step) noexcept { holdfast_step(client_, step); }

  /// See holdfast_wait.
  Status Wait(uint64_t step, Tier tier, Milliseconds timeout) {
    holdfast_error error;
    return Status::From(
        holdfast_wait(client_, step, static_cast<uint32_t>(tier), Count(timeout), &error), error);
  }

  /// Returns the newest version whose commit at `tier` was reported to this client, if any.
  std::optional<Version> Latest(Tier tier) {
    holdfast_version version{};
    if (holdfast_latest(client_, static_cast<uint32_t>(tier), &version, nullptr) != HOLDFAST_OK) {
      return std::nullopt;
    }
    return Version{version.incarnation, version.step};
  }

  /// See holdfast_restore. Without `wanted`: the newest version that the whole job can restore.
  Result<Restored> Restore(std::optional<Version> wanted = std::nullopt,
                           Milliseconds timeout = Milliseconds(120'000)) {
    holdfast_version version{};
    if (wanted) version = {wanted->incarnation, wanted->step};
    holdfast_restored* raw = nullptr;
    holdfast_error error;
    holdfast_code code =
        holdfast_restore(client_, wanted ? &version : nullptr, Count(timeout), &raw, &error);
    if (code != HOLDFAST_OK) return Status::From(code, error);
    std::unique_ptr<holdfast_restored, decltype(&holdfast_restored_free)> owner(
        raw, &holdfast_restored_free);
    Restored restored{{raw->version.incarnation, raw->version.step},
                      static_cast<Tier>(raw->tier),
                      raw->bytes,
                      {}};
    for (uint32_t i = 0; i < raw->extra_count; ++i) {
      const holdfast_extra& extra = raw->extras[i];
      restored.extras.push_back(
          {extra.name, std::string(static_cast<const char*>(extra.data), extra.bytes)});
    }
    return restored;
  }

  /// See holdfast_reader_open. Without `wanted`: the newest version that the whole job can restore.
  Result<VersionReader> OpenReader(std::optional<Version> wanted = std::nullopt,
                                   Milliseconds timeout = Milliseconds(120'000)) {
    holdfast_version version{};
    if (wanted) version = {wanted->incarnation, wanted->step};
    holdfast_reader* reader = nullptr;
    holdfast_error error;
    holdfast_code code = holdfast_reader_open(client_, wanted ? &version : nullptr,
                                              detail::ToMilliseconds(timeout), &reader, &error);
    if (code != HOLDFAST_OK) return Status::From(code, error);
    return VersionReader(reader);
  }

  /// All differences that made the latest Restore() or VersionReader::Load() fail, one sentence
  /// each.
  std::vector<std::string> Differences() {
    std::vector<std::string> all(holdfast_difference_count(client_));
    for (size_t i = 0; i < all.size(); ++i) {
      const char* text = holdfast_difference(client_, i);
      if (text != nullptr) all[i] = text;
    }
    return all;
  }

  /// Returns OK while connected, otherwise the reason.
  Status Connection() {
    holdfast_error error;
    return Status::From(holdfast_connection(client_, &error), error);
  }

  holdfast_stats Stats() {
    holdfast_stats stats{};
    stats.struct_size = sizeof stats;
    holdfast_get_stats(client_, &stats);
    return stats;
  }

  /// See holdfast_close. Afterwards the object is empty, and every other call is an error.
  Status Close(Milliseconds timeout = Milliseconds(30'000)) {
    holdfast_client* client = std::exchange(client_, nullptr);
    if (client == nullptr) return {};
    holdfast_error error;
    return Status::From(holdfast_close(client, Count(timeout), &error), error);
  }

  /// Returns the C handle for functions of holdfast.h. This object keeps ownership.
  holdfast_client* get() { return client_; }

 private:
  using LogFunction = std::function<void(LogLevel, std::string_view)>;

  Client(holdfast_client* client, std::unique_ptr<LogFunction> log)
      : client_(client), log_(std::move(log)) {}

  static uint64_t Count(Milliseconds time) {
    return time.count() < 0 ? 0 : static_cast<uint64_t>(time.count());
  }
  /// In the C interface, 0 stands for the default.
  static uint32_t AtLeast1(Milliseconds time) {
    return time.count() < 1 ? 1U : static_cast<uint32_t>(time.count());
  }
  static const char* OrNull(const std::string& text) {
    return text.empty() ? nullptr : text.c_str();
  }

  static holdfast_options ToC(const Options& options, LogFunction* log) {
    holdfast_options raw = HOLDFAST_OPTIONS_INIT;
    raw.socket_path = OrNull(options.socket_path);
    raw.job = options.job.c_str();
    raw.run_id = OrNull(options.run_id);
    raw.rank = options.rank;
    raw.world = options.world;
    raw.slots = options.slots;
    raw.when_full = static_cast<uint32_t>(options.when_full);
    raw.wait_ms = AtLeast1(options.wait);
    raw.connect_timeout_ms = AtLeast1(options.connect_timeout);
    raw.agent_timeout_ms = AtLeast1(options.agent_timeout);
    raw.start_offline = options.start_offline ? 1 : 0;
    raw.extra_bytes_max = options.extra_bytes_max;
    raw.extra_count_max = options.extra_count_max;
    raw.copy_threads = options.copy_threads;
    raw.device_backend = OrNull(options.device_backend);
    raw.image_format = options.image_format;
    if (*log) {
      raw.log = [](void* context, int level, const char* message) {
        (*static_cast<LogFunction*>(context))(static_cast<LogLevel>(level), message);
      };
      raw.log_context = log;
    }
    return raw;
  }

  holdfast_client* client_ = nullptr;
  std::unique_ptr<LogFunction> log_;  // outlives the client, whose threads call it
};

/// Marks a phase for its own lifetime. Does nothing when the client is null.
class PhaseScope {
 public:
  /// `client` must outlive this object and must not be moved during its lifetime.
  PhaseScope(Client* client, Phase phase) noexcept : client_(client), phase_(phase) {
    if (client_ != nullptr) client_->BeginPhase(phase_);
  }
  ~PhaseScope() {
    if (client_ != nullptr) client_->EndPhase(phase_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Client* client_;
  Phase phase_;
};

/// Records an operation for its own lifetime. The first constructor records an operation of
/// communicator 0, which has all ranks of the job. The second records an operation of any
/// communicator. A null client means the process's first client.
class CollectiveScope {
 public:
  /// `client` must outlive this object and must not be moved during its lifetime.
  CollectiveScope(Client* client, Kind kind, uint64_t bytes) noexcept
      : CollectiveScope(client, Describe(kind, bytes)) {}
  CollectiveScope(Client* client, const holdfast_collective& collective) noexcept
      : client_(client),
        operation_(
            holdfast_collective_begin(client == nullptr ? nullptr : client->get(), &collective)) {}
  ~CollectiveScope() {
    holdfast_collective_end(client_ == nullptr ? nullptr : client_->get(), operation_);
  }
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  static holdfast_collective Describe(Kind kind, uint64_t bytes) noexcept {
    holdfast_collective collective{};
    collective.struct_size = sizeof collective;
    collective.bytes = bytes;
    collective.kind = static_cast<uint32_t>(kind);
    collective.peer = HOLDFAST_NO_PEER;
    return collective;
  }

  Client* client_;
  holdfast_operation operation_;
};

}  // namespace v1
}  // namespace holdfast

#endif  // HOLDFAST_HOLDFAST_HPP_
