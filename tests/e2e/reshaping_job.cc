#include "tests/e2e/reshaping_job.h"

#include <fmt/format.h>

#include <cstring>
#include <thread>

#include "base/random.h"
#include "testing/cluster/process.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
const std::string kJob = "reshaped";

enum class Split { kRows, kColumns, kReplica, kEachRank };
struct Global {
  const char* name;
  v1::DType dtype;
  size_t element;
  v1::Shape shape;
  Split split;
};

/// Rows and columns do not divide evenly. Some tensors are longer than a chunk. Each rank saves all
/// of a tensor with kEachRank, and a part of the tensor with kReplica.
const std::vector<Global>& Globals() {
  static const std::vector<Global> all = {
      {"rows", v1::DType::kF32, 4, {2053, 1021}, Split::kRows},
      {"columns", v1::DType::kU16, 2, {301, 4099}, Split::kColumns},
      {"replica", v1::DType::kI64, 8, {517, 3, 37}, Split::kReplica},
      {"everywhere", v1::DType::kU8, 1, {65'537}, Split::kEachRank},
      {"scalar", v1::DType::kF64, 8, {}, Split::kEachRank},
      {"empty", v1::DType::kI32, 4, {0, 4}, Split::kEachRank},
  };
  return all;
}

uint64_t Product(const v1::Shape& shape) {
  uint64_t count = 1;
  for (uint64_t extent : shape) count *= extent;
  return count;
}

ReshapingJob::Owned Make(const Global& global, v1::Shape shape, v1::Shape offset) {
  ReshapingJob::Owned owned;
  owned.bytes.resize(Product(shape) * global.element);
  owned.tensor.name = global.name;
  owned.tensor.dtype = global.dtype;
  owned.tensor.data = owned.bytes.data();
  owned.tensor.shape = std::move(shape);
  owned.tensor.global_shape = global.shape;
  owned.tensor.offset = std::move(offset);
  return owned;
}

const Global& GlobalOf(const std::string& name) {
  for (const Global& global : Globals()) {
    if (name == global.name) return global;
  }
  return Globals()[0];
}

/// Calls `visit` with each element's byte offset in the slice and its bytes in that version.
template <typename Visit>
void ForEachElement(const ReshapingJob::Owned& owned, VersionId version, const Visit& visit) {
  const Global& global = GlobalOf(owned.tensor.name);
  const uint64_t salt = version.incarnation.value << 48 ^ version.step.value << 32 ^
                        static_cast<uint64_t>(&global - Globals().data()) << 28;
  const v1::Shape& shape = owned.tensor.shape;
  const uint64_t count = Product(shape);
  std::vector<uint64_t> at(shape.size());
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t index = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      index = index * global.shape[d] + owned.tensor.offset[d] + at[d];
    }
    const uint64_t value = (index ^ salt) * 0x9e3779b97f4a7c15ULL;
    visit(i * global.element, &value, global.element);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

VersionId IdOf(const v1::Version& version) {
  return {Incarnation{version.incarnation}, Step{version.step}};
}

Status FromClient(const std::string& what, const v1::Status& status) {
  return UnavailableError(what + ": " + status.ToString());
}

std::string ExtraOf(uint32_t rank, uint32_t world) {
  return fmt::format("rank {} of {}", rank, world);
}
}  // namespace

ReshapingJob::ReshapingJob(Cluster& cluster) : cluster_(cluster) {}

ReshapingJob::~ReshapingJob() { Close(); }

void ReshapingJob::Close() {
  for (auto& client : clients_) client->Close(milliseconds(0)).Ignore();
  clients_.clear();
}

std::vector<ReshapingJob::Owned> ReshapingJob::SlicesOf(uint32_t rank, uint32_t world) {
  std::vector<Owned> slices;
  for (const Global& global : Globals()) {
    v1::Shape shape = global.shape;
    v1::Shape offset(shape.size(), 0);
    if (global.split != Split::kEachRank) {
      const size_t d = global.split == Split::kColumns ? 1 : 0;
      offset[d] = global.shape[d] * rank / world;
      shape[d] = global.shape[d] * (rank + 1) / world - offset[d];
    }
    slices.push_back(Make(global, std::move(shape), std::move(offset)));
  }
  return slices;
}

std::vector<ReshapingJob::Owned> ReshapingJob::Everything() {
  std::vector<Owned> all;
  for (const Global& global : Globals()) {
    all.push_back(Make(global, global.shape, v1::Shape(global.shape.size(), 0)));
  }
  return all;
}

void ReshapingJob::Fill(std::vector<Owned>& tensors, VersionId version) {
  for (Owned& owned : tensors) {
    ForEachElement(owned, version, [&](uint64_t at, const uint64_t* value, size_t bytes) {
      std::memcpy(owned.bytes.data() + at, value, bytes);
    });
  }
}

Status ReshapingJob::Check(const std::vector<Owned>& tensors, VersionId version) {
  for (const Owned& owned : tensors) {
    uint64_t wrong = 0;
    ForEachElement(owned, version, [&](uint64_t at, const uint64_t* value, size_t bytes) {
      wrong += std::memcmp(owned.bytes.data() + at, value, bytes) == 0 ? 0 : 1;
    });
    if (wrong == 0) continue;
    return DataLossError(fmt::format("{} elements of {} differ from version {}", wrong,
                                     owned.tensor.name, ToString(version)));
  }
  return Status::Ok();
}

std::vector<v1::Tensor> ReshapingJob::Described(std::vector<Owned>& tensors) {
  std::vector<v1::Tensor> described;
  for (Owned& owned : tensors) {
    owned.tensor.data = owned.bytes.data();
    described.push_back(owned.tensor);
  }
  return described;
}

Status ReshapingJob::Open(const std::vector<int>& nodes) {
  Close();
  ++starts_;
  const std::string run_id = fmt::format("start-{}-{}", starts_, RandomHex(4));
  const auto world = static_cast<uint32_t>(nodes.size());
  states_.clear();
  for (uint32_t rank = 0; rank < world; ++rank) {
    states_.push_back(SlicesOf(rank, world));
    v1::Options options;
    options.job = kJob;
    options.rank = rank;
    options.world = world;
    options.run_id = run_id;
    options.socket_path = cluster_.AgentSocket(nodes[rank]);
    options.connect_timeout = milliseconds(30'000);
    auto client = v1::Client::Open(options, Described(states_.back()));
    if (!client.ok()) return FromClient(fmt::format("open rank {}", rank), client.status());
    clients_.push_back(std::make_unique<v1::Client>(std::move(*client)));
  }
  return Status::Ok();
}

Result<VersionId> ReshapingJob::SaveUntil(v1::Tier tier, milliseconds timeout) {
  std::optional<VersionId> committed;
  const bool done = WaitUntil(
      [&] {
        const auto latest = client(0).Latest(tier);
        if (latest && latest->incarnation == starts_) committed = IdOf(*latest);
        if (committed) return true;
        ++step_;
        for (uint32_t rank = 0; rank < world(); ++rank) {
          v1::Client& one = client(static_cast<int>(rank));
          one.Guard().Ignore();
          Fill(states_[rank], {Incarnation{starts_}, Step{step_}});
          const std::string extra = ExtraOf(rank, world());
          one.Save(step_, {{"who", extra}}).Ignore();
        }
        std::this_thread::sleep_for(milliseconds(50));
        return false;
      },
      timeout);
  for (auto& one : clients_) one->Guard().Ignore();
  if (!done) return Fail(DeadlineExceededError("nothing was committed"));
  return *committed;
}

Status ReshapingJob::LoadOne(int rank, milliseconds timeout, Loaded* loaded) {
  auto reader = client(rank).OpenReader(std::nullopt, timeout);
  if (!reader.ok()) return FromClient(fmt::format("reader of rank {}", rank), reader.status());
  *loaded = {IdOf(reader->version()), reader->world(), reader->tier()};
  for (uint32_t saver = 0; saver < reader->world(); ++saver) {
    const auto extra = reader->extra(saver, "who");
    if (!extra || *extra != ExtraOf(saver, reader->world())) {
      return DataLossError(fmt::format("the extra of rank {} belongs to another rank", saver));
    }
  }
  std::vector<Owned> mine = SlicesOf(static_cast<uint32_t>(rank), world());
  std::vector<Owned> all = Everything();
  std::vector<v1::Tensor> wanted = Described(mine);
  for (const v1::Tensor& tensor : Described(all)) wanted.push_back(tensor);
  const v1::Status done = reader->Load(wanted, timeout);
  if (!done.ok()) return FromClient(fmt::format("load of rank {}", rank), done);
  HOLDFAST_RETURN_IF_ERROR(Check(mine, loaded->version));
  return Check(all, loaded->version);
}

Result<ReshapingJob::Loaded> ReshapingJob::LoadAll(milliseconds timeout) {
  std::vector<Status> outcomes(world());
  std::vector<Loaded> loaded(world());
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < world(); ++rank) {
    ranks.emplace_back(
        [&, rank] { outcomes[rank] = LoadOne(static_cast<int>(rank), timeout, &loaded[rank]); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (uint32_t rank = 0; rank < world(); ++rank) {
    HOLDFAST_RETURN_IF_ERROR(outcomes[rank]);
    if (loaded[rank].version != loaded[0].version) {
      return Fail(InternalError(fmt::format("rank 0 opened {}, rank {} opened {}",
                                            ToString(loaded[0].version), rank,
                                            ToString(loaded[rank].version))));
    }
  }
  step_ = loaded[0].version.step.value;
  return loaded[0];
}

}  // namespace holdfast::local
