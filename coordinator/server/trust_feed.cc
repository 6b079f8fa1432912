#include "coordinator/server/trust_feed.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "coordinator/api/stream_writer.h"

namespace holdfast::coord {
namespace {
constexpr std::chrono::seconds kTrustInterval(1);
}  // namespace

/// The stream of one agent: sends the newest message that it has not sent yet. The feed owns it,
/// too, as long as the stream is open.
class TrustFeed::Stream : public StreamWriter<coordinator::Trust> {
 public:
  static std::shared_ptr<Stream> Make(std::string uri, int64_t not_before) {
    const auto stream = std::make_shared<Stream>(std::move(uri), not_before);
    stream->BelongToCall(stream);
    return stream;
  }
  Stream(std::string uri, int64_t not_before) : uri_(std::move(uri)), not_before_(not_before) {}

  const std::string& uri() const { return uri_; }
  int64_t not_before() const { return not_before_; }
  bool closed() {
    MutexLock lock(mutex_);
    return closing_;
  }

  void Push(const coordinator::Trust& trust) {
    {
      MutexLock lock(mutex_);
      next_ = trust;
    }
    Next();
  }
  void Close(const grpc::Status& why) { End(why); }
  void OnCancel() override { Close(grpc::Status::CANCELLED); }

 private:
  std::optional<coordinator::Trust> Take() override HOLDFAST_REQUIRES(mutex_) {
    return std::exchange(next_, std::nullopt);
  }

  const std::string uri_;
  const int64_t not_before_;
  std::optional<coordinator::Trust> next_ HOLDFAST_GUARDED_BY(mutex_);
};

TrustFeed::TrustFeed(Applier& applier, Issuer& issuer, Clock& clock)
    : applier_(applier), issuer_(issuer), clock_(clock), thread_([this] { Run(); }) {}

TrustFeed::~TrustFeed() { Stop(); }

void TrustFeed::Stop() {
  std::set<std::shared_ptr<Stream>> open;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    open.swap(streams_);
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  for (const auto& stream : open) {
    stream->Close({grpc::StatusCode::UNAVAILABLE, "the coordinator is stopping"});
  }
}

void TrustFeed::ReadNow() {
  {
    MutexLock lock(mutex_);
    due_ = true;
  }
  wake_.NotifyAll();
}

grpc::ServerWriteReactor<coordinator::Trust>* TrustFeed::Watch(std::string uri,
                                                               int64_t not_before) {
  const auto stream = Stream::Make(std::move(uri), not_before);
  Stream* raw = stream.get();
  bool stopping = false;
  std::optional<coordinator::Trust> first;
  {
    MutexLock lock(mutex_);
    stopping = stopping_;
    if (!stopping) streams_.insert(stream);
    if (loaded_) first = Current();
  }
  if (stopping) {
    raw->Close({grpc::StatusCode::UNAVAILABLE, "the coordinator is stopping"});
  } else if (first) {
    raw->Push(*first);
  }
  return raw;
}

void TrustFeed::Run() {
  for (;;) {
    Refresh();
    Send();
    MutexLock lock(mutex_);
    if (!stopping_ && !due_) wake_.WaitFor(mutex_, kTrustInterval);
    due_ = false;
    if (stopping_) return;
  }
}

void TrustFeed::Refresh() {
  issuer_.Refresh();
  // The answer comes later, on another thread.
  [[maybe_unused]] const bool accepted = applier_.Query([this](const State* state, Epoch) {
    if (state == nullptr) return;  // the names that were revoked stay refused
    certificates::RevokedNames::Times times;
    for (const IdentityRecord& record : state->Identities()) {
      if (record.revoked_s != 0) times[{record.role, record.name}] = record.revoked_s;
    }
    MutexLock lock(mutex_);
    if (loaded_ && times == times_) return;
    loaded_ = true;
    times_ = times;
    due_ = true;
    revoked_.Replace(std::move(times));
    wake_.NotifyAll();
  });
}

coordinator::Trust TrustFeed::Current() {
  coordinator::Trust trust;
  if (issuer_.enabled()) trust.set_ca_pem(issuer_.bundle());
  trust.set_issuer_hash(issuer_.issuer_hash());
  for (const auto& [key, before_s] : times_) {
    coordinator::Revoked* one = trust.add_revoked();
    one->set_role(key.first);
    one->set_name(key.second);
    one->set_before_s(before_s);
  }
  return trust;
}

void TrustFeed::Send() {
  std::vector<std::shared_ptr<Stream>> open;
  std::optional<coordinator::Trust> news;
  {
    MutexLock lock(mutex_);
    std::erase_if(streams_, [](const auto& stream) { return stream->closed(); });
    if (!loaded_) return;
    coordinator::Trust trust = Current();
    std::string text = trust.SerializeAsString();
    open.assign(streams_.begin(), streams_.end());
    if (text != sent_) {
      sent_ = std::move(text);
      news = std::move(trust);
    }
  }
  for (const auto& stream : open) {
    if (revoked_.Refuses(stream->uri(), stream->not_before())) {
      stream->Close({grpc::StatusCode::PERMISSION_DENIED, "this certificate is revoked"});
    } else if (news) {
      stream->Push(*news);
    }
  }
}

}  // namespace holdfast::coord
