// The C interface of views.

#include <holdfast/holdfast.h>

#include <memory>
#include <optional>

#include "client/core/api.h"

using holdfast::Status;
using holdfast::client::Client;
using holdfast::client::Guarded;

struct holdfast_view {
  Client* client = nullptr;
  std::unique_ptr<holdfast::client::View> core;
};

extern "C" {

holdfast_code holdfast_view_open(holdfast_client* client, const holdfast_version* wanted,
                                 uint32_t timeout_ms, holdfast_view** view, holdfast_error* error) {
  if (view != nullptr) *view = nullptr;
  return Guarded(error, [&]() -> Status {
    if (client == nullptr || view == nullptr) {
      return holdfast::InvalidArgumentError("client or view is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(client->core->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(const auto version, holdfast::client::WantedVersion(wanted));
    auto holder = std::make_unique<holdfast_view>();
    holder->client = client->core.get();
    HOLDFAST_ASSIGN_OR_RETURN(holder->core, client->core->OpenView(version, timeout_ms));
    *view = holder.release();
    return Status::Ok();
  });
}

const holdfast_view_info* holdfast_view_get(const holdfast_view* view) {
  return view == nullptr ? nullptr : &view->core->info();
}

holdfast_code holdfast_view_load(holdfast_view* view, const holdfast_tensor* tensors, size_t count,
                                 uint32_t timeout_ms, holdfast_error* error) {
  return Guarded(error, [&]() -> Status {
    if (view == nullptr || (tensors == nullptr && count > 0)) {
      return holdfast::InvalidArgumentError("view or tensors is NULL");
    }
    HOLDFAST_RETURN_IF_ERROR(view->client->CheckProcess());
    HOLDFAST_ASSIGN_OR_RETURN(const auto state, holdfast::client::DescribeState({tensors, count}));
    return view->client->LoadView(*view->core, state, timeout_ms);
  });
}

void holdfast_view_close(holdfast_view* view) {
  if (view == nullptr || !view->client->CheckProcess().ok()) return;
  delete view;
}

}  // extern "C"
