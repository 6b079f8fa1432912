#include "coordinator/api/refused_stream.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/service.h"

// The calls about the audit log and for a backup, and the records of the other calls.

namespace holdfast::coord {
namespace {
constexpr size_t kPageBytesMax = 1 << 20;
}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::GetAudit(grpc::CallbackServerContext* context,
                                                       const pb::GetAuditRequest* request,
                                                       pb::GetAuditReply* reply) {
  const Auditor* auditor = recorded_.auditor();
  if (auditor == nullptr) {
    return ReplyOutcome(context, reply, InternalError("this coordinator has no audit log"));
  }
  auto page = auditor->log().Read(request->since_wall_nanos(), request->after(), kPageBytesMax);
  if (!page) return ReplyOutcome(context, reply, page.error());
  for (std::string& line : page->lines) reply->add_lines(std::move(line));
  reply->set_last(page->last);
  reply->set_more(page->more);
  return ReplyOutcome(context, reply, Status::Ok());
}

Backups::Reactor* CoordinatorService::Backup(grpc::CallbackServerContext* context,
                                             const pb::BackupRequest* request) {
  const auto begun = recorded_.Begin(*context, "Backup", *request);
  if (!begun) return RefusedStream<pb::BackupPart>::Make(begun.error());
  return backups_->Send(*context, [this, number = *begun](const Status& outcome) {
    recorded_.auditor()->End(number, "Backup", outcome);
  });
}

}  // namespace holdfast::coord
