#include "storage/parity/group_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "storage/erasure/code.h"

namespace holdfast {
namespace {

using nlohmann::json;

Status CheckMember(const PlanMember& member) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", member.node));
  if (member.ranks.size() > kMemberRanksMax) {
    return InvalidArgumentError(fmt::format("node {} has {} ranks, more than {}", member.node,
                                            member.ranks.size(), kMemberRanksMax));
  }
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    const PlanRank& rank = member.ranks[i];
    if (rank.slot_bytes > kSlotBytesMax || rank.slot_bytes % kSlotBytesAlign != 0) {
      return InvalidArgumentError(fmt::format(
          "rank {} has a slot of {} bytes: at most {}, and a multiple of {}, are allowed",
          rank.rank.value, rank.slot_bytes, kSlotBytesMax, kSlotBytesAlign));
    }
    if (i > 0 && rank.rank <= member.ranks[i - 1].rank) {
      return InvalidArgumentError(fmt::format("the ranks of node {} do not ascend", member.node));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<GroupPlan> GroupPlan::Make(std::vector<PlanMember> members, uint32_t parity_count) {
  std::vector<uint64_t> image_bytes;
  for (const PlanMember& member : members) {
    HOLDFAST_RETURN_IF_ERROR(CheckMember(member));
    uint64_t bytes = 0;
    for (const PlanRank& rank : member.ranks) bytes += rank.slot_bytes;
    image_bytes.push_back(bytes);
  }
  HOLDFAST_ASSIGN_OR_RETURN(StripeLayout layout, StripeLayout::Make(parity_count, image_bytes));
  return GroupPlan(std::move(members), std::move(layout));
}

std::string GroupPlan::ToJson(bool as_of_now) const {
  json members = json::array();
  for (const PlanMember& member : members_) {
    json ranks = json::array();
    for (const PlanRank& rank : member.ranks) {
      ranks.push_back({rank.rank.value, rank.slot_bytes});
    }
    // A parity shard keeps the planned names, so that its bytes do not depend on the current
    // members.
    const bool as_planned = !as_of_now && !member.planned.empty();
    members.push_back({{"node", as_planned ? member.planned : member.node},
                       {"address", as_of_now ? member.address : ""},
                       {"number", member.number},
                       {"data", as_of_now && member.has_data},
                       {"parity", as_of_now && member.has_parity},
                       {"ranks", std::move(ranks)}});
  }
  return json{{"parity", layout_.parity_count()}, {"members", std::move(members)}}.dump();
}

Result<GroupPlan> GroupPlan::FromJson(std::string_view text) {
  // The text comes from a disk or another node: each value is checked before its use.
  const auto bad = [] { return Fail(DataLossError("not the description of a parity group")); };
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object() || !document.contains("parity") || !document.contains("members") ||
      !document["parity"].is_number_unsigned() || !document["members"].is_array()) {
    return bad();
  }
  std::vector<PlanMember> members;
  for (const json& item : document["members"]) {
    if (!item.is_object() || members.size() >= kCodeSegmentsMax) return bad();
    const auto has = [&item](const char* key, auto is) {
      return item.contains(key) && (item[key].*is)();
    };
    if (!has("node", &json::is_string) || !has("address", &json::is_string) ||
        !has("number", &json::is_number_unsigned) || !has("data", &json::is_boolean) ||
        !has("parity", &json::is_boolean) || !has("ranks", &json::is_array)) {
      return bad();
    }
    PlanMember member;
    member.node = item["node"].get<std::string>();
    member.address = item["address"].get<std::string>();
    member.number = item["number"].get<uint32_t>();
    member.has_data = item["data"].get<bool>();
    member.has_parity = item["parity"].get<bool>();
    for (const json& rank : item["ranks"]) {
      if (!rank.is_array() || rank.size() != 2 || !rank[0].is_number_unsigned() ||
          !rank[1].is_number_unsigned() || member.ranks.size() >= kMemberRanksMax) {
        return bad();
      }
      member.ranks.push_back({Rank{rank[0].get<uint32_t>()}, rank[1].get<uint64_t>()});
    }
    members.push_back(std::move(member));
  }
  auto plan = Make(std::move(members), document["parity"].get<uint32_t>());
  if (!plan)
    return Fail(DataLossError("a parity group's description is bad: " + plan.error().message()));
  return plan;
}

std::optional<uint32_t> GroupPlan::PositionOf(std::string_view node) const {
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (members_[i].node == node) return i;
  }
  return std::nullopt;
}

std::optional<uint32_t> GroupPlan::PositionOf(Rank rank) const {
  for (uint32_t i = 0; i < members_.size(); ++i) {
    for (const PlanRank& own : members_[i].ranks) {
      if (own.rank == rank) return i;
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> GroupPlan::PositionOfNumber(uint32_t number) const {
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (members_[i].number == number) return i;
  }
  return std::nullopt;
}

std::vector<GroupPlan::Piece> GroupPlan::Pieces(uint32_t position, uint64_t begin,
                                                uint64_t end) const {
  std::vector<Piece> pieces;
  uint64_t rank_begin = 0;
  for (const PlanRank& rank : members_[position].ranks) {
    const uint64_t from = std::max(begin, rank_begin);
    const uint64_t to = std::min(end, rank_begin + rank.slot_bytes);
    if (from < to) pieces.push_back({rank.rank, from - rank_begin, from - begin, to - from});
    rank_begin += rank.slot_bytes;
  }
  return pieces;
}

uint64_t GroupPlan::RankBegin(uint32_t position, Rank rank) const {
  uint64_t begin = 0;
  for (const PlanRank& own : members_[position].ranks) {
    if (own.rank == rank) break;
    begin += own.slot_bytes;
  }
  return begin;
}

}  // namespace holdfast
