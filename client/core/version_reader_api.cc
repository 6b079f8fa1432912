// The C interface of readers.

#include <holdfast/holdfast.h>

#include <memory>
#include <optional>

#include "client/core/api.h"

using holdfast::Status;
using holdfast::client::Client;
using holdfast::client::Guarded;

struct holdfast_reader {
  Client* client = nullptr;
  uint32_t timeout_ms = 0;  // of the open
  std::unique_ptr<holdfast::client::VersionReader> core;
};

extern "C" {

holdfast_code holdfast_reader_open(holdfast_client* client, const holdfast_version* wanted,
                                   uint32_t timeout_ms, holdfast_reader** reader,
                                   holdfast_error* error) {
  if (reader != nullptr) *reader = nullptr;
  return Guarded(error, [&]() -> Status {
    if (client == nullptr || reader == nullptr) {
      return holdfast::InvalidArgumentError("client or reader is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(client->core->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(const auto version, holdfast::client::WantedVersion(wanted));
    auto holder = std::make_unique<holdfast_reader>();
    holder->client = client->core.get();
    holder->timeout_ms = timeout_ms;
    HOLDFAST_ASSIGN_OR_RETURN(holder->core, client->core->OpenReader(version, timeout_ms));
    *reader = holder.release();
    return Status::Ok();
  });
}

const holdfast_reader_info* holdfast_reader_own(const holdfast_reader* reader) {
  return reader == nullptr ? nullptr : &reader->core->own();
}

holdfast_code holdfast_reader_list(holdfast_reader* reader, uint32_t timeout_ms,
                                   holdfast_error* error) {
  return Guarded(error, [&]() -> Status {
    if (reader == nullptr) return holdfast::InvalidArgumentError("reader is NULL");
    HOLDFAST_RETURN_IF_ERROR(reader->client->CheckProcess());
    return reader->client->ListVersion(*reader->core, timeout_ms);
  });
}

const holdfast_reader_info* holdfast_reader_get(const holdfast_reader* reader) {
  if (reader == nullptr) return nullptr;
  // Programs of earlier releases do not call holdfast_reader_list. An error shows as empty tables.
  static_cast<void>(Guarded(nullptr, [&]() -> Status {
    HOLDFAST_RETURN_IF_ERROR(reader->client->CheckProcess());
    return reader->client->ListVersion(*reader->core, reader->timeout_ms);
  }));
  return &reader->core->all();
}

holdfast_code holdfast_reader_tensors(holdfast_reader* reader, uint32_t timeout_ms,
                                      const holdfast_reader_info** info, holdfast_error* error) {
  if (info != nullptr) *info = nullptr;
  return Guarded(error, [&]() -> Status {
    if (reader == nullptr || info == nullptr) {
      return holdfast::InvalidArgumentError("reader or info is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(reader->client->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(*info, reader->client->ListTensors(*reader->core, timeout_ms));
    return Status::Ok();
  });
}

holdfast_code holdfast_reader_extra(holdfast_reader* reader, uint32_t rank, const char* name,
                                    uint32_t timeout_ms, holdfast_extra* extra,
                                    holdfast_error* error) {
  return Guarded(error, [&]() -> Status {
    if (reader == nullptr || name == nullptr || extra == nullptr) {
      return holdfast::InvalidArgumentError("reader, name or extra is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(reader->client->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(
        *extra, reader->client->ReadExtra(*reader->core, holdfast::Rank{rank}, name, timeout_ms));
    return Status::Ok();
  });
}

holdfast_code holdfast_reader_load(holdfast_reader* reader, const holdfast_tensor* tensors,
                                   size_t count, uint32_t timeout_ms, holdfast_error* error) {
  return Guarded(error, [&]() -> Status {
    if (reader == nullptr || (tensors == nullptr && count > 0)) {
      return holdfast::InvalidArgumentError("reader or tensors is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(reader->client->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(const auto state, holdfast::client::DescribeState({tensors, count}));
    return reader->client->LoadTensors(*reader->core, state, timeout_ms);
  });
}

void holdfast_reader_close(holdfast_reader* reader) {
  if (reader == nullptr || !reader->client->CheckProcess().ok()) return;
  delete reader;
}

}  // extern "C"
