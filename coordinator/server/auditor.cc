#include "coordinator/server/auditor.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <memory>

#include "base/log.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::coord {
namespace {
std::string Describe(const google::protobuf::Message& request) {
  std::unique_ptr<google::protobuf::Message> copy(request.New());
  copy->CopyFrom(request);
  if (auto* run = dynamic_cast<coordinator::StartRunRequest*>(copy.get())) {
    // The values may be keys or tokens.
    for (std::string& variable : *run->mutable_spec()->mutable_environment()) {
      variable.resize(std::min(variable.find('='), variable.size()));
    }
  }
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(*copy, &text, options).ok()) return "{}";
  return text;
}
}  // namespace

Result<uint64_t> Auditor::Begin(grpc::CallbackServerContext& context, std::string_view method,
                                const google::protobuf::Message& request) {
  const Caller caller = callers_.Identify(context.c_call());
  AuditRecord record;
  record.method = method;
  record.who = caller.name;
  record.from = caller.from;
  record.what = Describe(request);
  record.outcome = "begun";
  auto number = log_.Append(record);
  if (number) return number;
  Log(LogLevel::kError, "AuditNotWritten",
      {Kv("method", record.method), Kv("error", number.error().ToString())});
  return Fail(
      Status(number.error().code(),
             fmt::format("{} was not carried out, since the audit log cannot record it: {}. "
                         "Free space in data_dir of the coordinator, or repair its disk "
                         "(docs/security.md)",
                         method, number.error().message())));
}

void Auditor::End(uint64_t begun, std::string_view method, const Status& outcome) {
  AuditRecord record;
  record.method = method;
  record.begun = begun;
  record.outcome = outcome.ToString();
  auto number = log_.Append(record);
  if (number) return;
  Log(LogLevel::kError, "AuditNotWritten",
      {Kv("method", record.method), Kv("outcome", record.outcome),
       Kv("error", number.error().ToString())});
}

}  // namespace holdfast::coord
