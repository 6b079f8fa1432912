#include "coordinator/api/job_rule.h"

#include <fmt/format.h>

namespace holdfast::coord {

std::string JobNamedIn(const AccessRule& rule, const google::protobuf::Message& request) {
  const google::protobuf::Message* at = &request;
  std::string_view path = rule.job_field;
  for (;;) {
    const size_t dot = path.find('.');
    const auto* field = at->GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
    if (field == nullptr || field->is_repeated()) return "";
    const auto* reflection = at->GetReflection();
    if (dot == std::string_view::npos) {
      const bool text = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING;
      return text ? reflection->GetString(*at, field) : "";
    }
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) return "";
    at = &reflection->GetMessage(*at, field);
    path.remove_prefix(dot + 1);
  }
}

Status CheckUserRule(const AccessRule& rule, const Caller& caller, const std::string& job,
                     const JobOwner& owner) {
  if (rule.users == UserRule::kNever || !caller.uid) {
    return PermissionDeniedError(fmt::format("needs the role {}; {} has {}", ToString(rule.roles),
                                             caller.name, ToString(caller.roles)));
  }
  if (rule.users == UserRule::kOwnJobs && job.empty()) return Status::Ok();
  if (rule.users == UserRule::kNewJob && !owner.exists) return Status::Ok();
  if (owner.uid && *owner.uid == *caller.uid) return Status::Ok();
  if (!owner.exists) {
    return PermissionDeniedError(
        fmt::format("{} has no job '{}', and may use only its own jobs", caller.name, job));
  }
  return PermissionDeniedError(fmt::format(
      "job '{}' belongs to {}, and {} may use only its own jobs", job,
      owner.uid ? fmt::format("uid {}", *owner.uid) : "no user that is known", caller.name));
}

}  // namespace holdfast::coord
