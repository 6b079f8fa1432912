#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/http/http_server.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/ui/history.h"
#include "coordinator/ui/ui_options.h"
#include "coordinator/ui/ui_source.h"

namespace holdfast::ui {

/// Clients that receive updates at the same time. Others ask for snapshots.
inline constexpr int kStreamsMax = 8;

/// Serves the page:
///   GET /             the page
///   GET /api/snapshot what the page shows: one JSON document
///   GET /api/events   the same as server-sent events, one for each update
///   GET /api/impact?node=NODE   the document of `holdfast advise --without NODE`
/// A thread makes one snapshot at an interval, so clients cost the coordinator nothing more.
class UiServer final : private HttpHandler {
 public:
  /// `source` and `clock` outlive the server. Errors as from HttpServer::Start.
  static Result<std::unique_ptr<UiServer>> Start(const UiOptions& options,
                                                 const HttpCertificate& tls, UiSource& source,
                                                 Clock& clock, std::chrono::milliseconds interval);
  ~UiServer() override;

  /// Returns the URL of the page, or unix:/path.
  std::string url() const;

 private:
  class Stream;
  UiServer(const UiOptions& options, UiSource& source, Clock& clock,
           std::chrono::milliseconds interval);
  HttpAnswer Get(const HttpRequest& request) override;
  bool IsOpen(const std::string& path) const override { return path == "/"; }
  std::chrono::seconds TimeLimit(const std::string& path) const override;

  HttpAnswer Snapshot();
  HttpAnswer Events();
  HttpAnswer Impact(const HttpRequest& request);
  bool IsFromOtherSite(const HttpRequest& request) const;
  void Run();
  std::string Render(const UiInput& input);

  const bool checks_host_;
  UiSource& source_;
  Clock& clock_;
  const std::chrono::milliseconds interval_;
  const std::string policy_;
  History history_;  // only the thread
  std::atomic<int> streams_{0};
  std::atomic<bool> asking_{false};  // an impact is being computed

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const std::string> snapshot_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t number_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;

  std::thread thread_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace holdfast::ui
