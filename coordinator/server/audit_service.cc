#include <memory>

#include "coordinator/api/convert.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/service.h"

// The calls about the audit log and for a backup, and the records of the other calls.

namespace holdfast::coord {
namespace {
constexpr size_t kPageBytesMax = 1 << 20;

/// A backup that ends at once.
class RefusedBackup : public Backups::Reactor {
 public:
  explicit RefusedBackup(const Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { std::unique_ptr<RefusedBackup> last(this); }
};
}  // namespace

Result<uint64_t> CoordinatorService::Begin(grpc::CallbackServerContext& context,
                                           std::string_view method,
                                           const google::protobuf::Message& request) {
  if (auditor_ == nullptr) return Fail(InternalError("this coordinator has no audit log"));
  return auditor_->Begin(context, method, request);
}

Applier::ReplyHandler CoordinatorService::Recorded(uint64_t begun, std::string_view method,
                                                   Applier::ReplyHandler next) {
  if (begun == 0) return next;
  return [this, begun, method, next = std::move(next)](const Reply* reply) {
    const Status unknown = UnavailableError("the coordinator lost its state during the call");
    auditor_->End(begun, method, reply == nullptr ? unknown : reply->outcome);
    next(reply);
  };
}

grpc::ServerUnaryReactor* CoordinatorService::GetAudit(grpc::CallbackServerContext* context,
                                                       const pb::GetAuditRequest* request,
                                                       pb::GetAuditReply* reply) {
  if (auditor_ == nullptr) {
    return ReplyOutcome(context, reply, InternalError("this coordinator has no audit log"));
  }
  auto page = auditor_->log().Read(request->since_wall_nanos(), request->after(), kPageBytesMax);
  if (!page) return ReplyOutcome(context, reply, page.error());
  for (std::string& line : page->lines) reply->add_lines(std::move(line));
  reply->set_last(page->last);
  reply->set_more(page->more);
  return ReplyOutcome(context, reply, Status::Ok());
}

Backups::Reactor* CoordinatorService::Backup(grpc::CallbackServerContext* context,
                                             const pb::BackupRequest* request) {
  const auto begun = Begin(*context, "Backup", *request);
  if (!begun) return std::make_unique<RefusedBackup>(begun.error()).release();
  return backups_->Send(*context, [this, number = *begun](const Status& outcome) {
    auditor_->End(number, "Backup", outcome);
  });
}

}  // namespace holdfast::coord
