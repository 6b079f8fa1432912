// The C interface: checks arguments, catches exceptions, and translates to client.h.

#include <holdfast/holdfast.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/tiers.h"

#include "client/core/api.h"

using holdfast::ErrorCode;
using holdfast::Status;
using holdfast::client::Client;
using holdfast::client::ExtraBytes;
using holdfast::client::Guarded;
using holdfast::client::Outcome;
using holdfast::client::Report;

namespace {

/// Like Guarded, for calls on a client. Refuses a null client and a client of another process.
template <typename Body>
holdfast_code OnClient(holdfast_client* client, holdfast_error* error, Body body) {
  if (client == nullptr) return Report(holdfast::InvalidArgumentError("client is NULL"), error);
  return Guarded(error, [&]() -> decltype(body(*client->core)) {
    if (Status status = client->core->CheckProcess(); !status.ok()) return {status};
    return body(*client->core);
  });
}

Status CopyExtras(const holdfast_save_options& options, std::vector<ExtraBytes>* extras) {
  if (options.extra_count > 0 && options.extras == nullptr) {
    return holdfast::InvalidArgumentError("extras is NULL but extra_count is not 0");
  }
  for (size_t i = 0; i < options.extra_count; ++i) {
    const holdfast_extra& raw = options.extras[i];
    std::string name = raw.name == nullptr ? "" : raw.name;
    HOLDFAST_RETURN_IF_ERROR(holdfast::ValidateName("extra", name));
    for (const ExtraBytes& other : *extras) {
      if (other.name == name) {
        return holdfast::InvalidArgumentError("extra '" + name + "' is given twice");
      }
    }
    if (raw.bytes > 0 && raw.data == nullptr) {
      return holdfast::InvalidArgumentError("extra '" + name + "' has no data");
    }
    extras->push_back(
        {std::move(name), raw.bytes == 0
                              ? std::string()
                              : std::string(static_cast<const char*>(raw.data), raw.bytes)});
  }
  return Status::Ok();
}

/// Owns the memory that a holdfast_restored points into. The public part must be the first member.
struct RestoredHolder {
  holdfast_restored shown{};
  std::vector<ExtraBytes> extras;
  std::vector<holdfast_extra> table;
};

holdfast_restored* Hold(holdfast::client::RestoredState state) {
  auto holder = std::make_unique<RestoredHolder>();
  holder->extras = std::move(state.extras);
  for (const ExtraBytes& extra : holder->extras) {
    holder->table.push_back({extra.name.c_str(), extra.bytes.c_str(), extra.bytes.size()});
  }
  holder->shown.version = {state.version.incarnation.value, state.version.step.value};
  holder->shown.bytes = state.bytes;
  holder->shown.tier = static_cast<uint32_t>(state.tier);
  holder->shown.extra_count = static_cast<uint32_t>(holder->table.size());
  holder->shown.extras = holder->table.data();
  return &holder.release()->shown;
}

}  // namespace

extern "C" {

const char* holdfast_code_name(holdfast_code code) {
  if (code < 0 || code > HOLDFAST_INTERNAL) return "Unknown";
  return holdfast::ErrorName(static_cast<ErrorCode>(code)).data();
}

uint32_t holdfast_api_version(void) { return HOLDFAST_API_VERSION; }

const char* holdfast_version_string(void) { return HOLDFAST_VERSION; }

holdfast_code holdfast_open(const holdfast_options* options, const holdfast_tensor* tensors,
                            size_t tensor_count, holdfast_client** client, holdfast_error* error) {
  if (client != nullptr) *client = nullptr;
  return Guarded(error, [&]() -> Status {
    if (options == nullptr || client == nullptr || (tensors == nullptr && tensor_count > 0)) {
      return holdfast::InvalidArgumentError("options, client or tensors is NULL");
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto resolved, holdfast::client::ResolveOptions(*options));
    HOLDFAST_ASSIGN_OR_RETURN(auto state, holdfast::client::DescribeState({tensors, tensor_count}));
    auto holder = std::make_unique<holdfast_client>();
    HOLDFAST_ASSIGN_OR_RETURN(holder->core, Client::Open(resolved, std::move(state)));
    *client = holder.release();
    return Status::Ok();
  });
}

holdfast_code holdfast_connection(holdfast_client* client, holdfast_error* error) {
  return OnClient(client, error, [](Client& core) -> Status { return core.Connection(); });
}

holdfast_code holdfast_save(holdfast_client* client, uint64_t step,
                            const holdfast_save_options* given, holdfast_error* error) {
  return OnClient(client, error, [&](Client& core) -> Outcome {
    holdfast_save_options options{};
    if (given != nullptr) {
      std::memcpy(&options, given, std::min(given->struct_size, sizeof options));
    }
    std::vector<ExtraBytes> extras;
    if (Status status = CopyExtras(options, &extras); !status.ok()) return {status};
    return core.Save(step, std::move(extras), options.stream, options.wait_ms);
  });
}

holdfast_code holdfast_guard(holdfast_client* client, void* stream, holdfast_error* error) {
  return OnClient(client, error, [&](Client& core) -> Outcome { return core.Guard(stream); });
}

void holdfast_phase_begin(holdfast_client* client, uint32_t phase) {
  static_assert(HOLDFAST_PHASE_COLLECTIVE ==
                static_cast<uint32_t>(holdfast::agent::Phase::kCollective));
  static_assert(HOLDFAST_PHASE_EVALUATION ==
                static_cast<uint32_t>(holdfast::agent::Phase::kEvaluation));
  if (client != nullptr) client->core->phases().Begin(phase);
}

void holdfast_phase_end(holdfast_client* client, uint32_t phase) {
  if (client != nullptr) client->core->phases().End(phase);
}

holdfast_code holdfast_wait(holdfast_client* client, uint64_t step, uint32_t tier,
                            uint64_t timeout_ms, holdfast_error* error) {
  return OnClient(client, error,
                  [&](Client& core) -> Status { return core.Wait(step, tier, timeout_ms); });
}

holdfast_code holdfast_latest(holdfast_client* client, uint32_t tier, holdfast_version* version,
                              holdfast_error* error) {
  return OnClient(client, error, [&](Client& core) -> Status {
    if (version == nullptr) return holdfast::InvalidArgumentError("version is NULL");
    if (!holdfast::IsTierNumber(tier)) {
      return holdfast::InvalidArgumentError("tier " + std::to_string(tier) + " does not exist");
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto latest, core.Latest(static_cast<holdfast::Tier>(tier)));
    *version = {latest.incarnation.value, latest.step.value};
    return Status::Ok();
  });
}

holdfast_code holdfast_restore(holdfast_client* client, const holdfast_version* wanted,
                               uint64_t timeout_ms, holdfast_restored** restored,
                               holdfast_error* error) {
  if (restored != nullptr) *restored = nullptr;
  return OnClient(client, error, [&](Client& core) -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(const auto version, holdfast::client::WantedVersion(wanted));
    HOLDFAST_ASSIGN_OR_RETURN(auto state, core.Restore(version, timeout_ms));
    if (restored != nullptr) *restored = Hold(std::move(state));
    return Status::Ok();
  });
}

void holdfast_restored_free(holdfast_restored* restored) {
  static_assert(offsetof(RestoredHolder, shown) == 0);
  delete reinterpret_cast<RestoredHolder*>(restored);
}

void holdfast_set_stop_check(int (*check)(void* context), void* context) {
  holdfast::client::SetStopCheck(check, context);
}

size_t holdfast_difference_count(holdfast_client* client) {
  return client == nullptr ? 0 : client->core->DifferenceCount();
}

const char* holdfast_difference(holdfast_client* client, size_t index) {
  return client == nullptr ? nullptr : client->core->Difference(index);
}

holdfast_code holdfast_get_stats(holdfast_client* client, holdfast_stats* stats) {
  return OnClient(client, nullptr, [&](Client& core) -> Status {
    if (stats == nullptr || stats->struct_size < sizeof stats->struct_size) {
      return holdfast::InvalidArgumentError("stats is NULL or its struct_size is not set");
    }
    holdfast_stats now = core.Stats();
    now.struct_size = stats->struct_size;
    std::memcpy(stats, &now, std::min(stats->struct_size, sizeof now));
    return Status::Ok();
  });
}

holdfast_code holdfast_close(holdfast_client* client, uint64_t timeout_ms, holdfast_error* error) {
  if (client == nullptr) return Report(Status::Ok(), error);
  if (Status status = client->core->CheckProcess(); !status.ok()) return Report(status, error);
  holdfast_code code = Guarded(error, [&]() -> Status { return client->core->Close(timeout_ms); });
  if (!client->core->abandoned()) delete client;
  return code;
}

}  // extern "C"
