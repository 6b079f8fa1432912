#pragma once

#include <memory>

#include "cli/core/command.h"

// The commands of this room.

namespace holdfast::cli {

std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeTopCommand();
std::unique_ptr<Command> MakeUiCommand();
std::unique_ptr<Command> MakeNodesCommand();
std::unique_ptr<Command> MakeVersionsCommand();
std::unique_ptr<Command> MakeIncidentsCommand();
std::unique_ptr<Command> MakeRunsCommand();
std::unique_ptr<Command> MakeRunCommand();
std::unique_ptr<Command> MakeStopCommand();
std::unique_ptr<Command> MakePinCommand(bool pin);
std::unique_ptr<Command> MakeRetainCommand();
std::unique_ptr<Command> MakeForgetCommand();
std::unique_ptr<Command> MakeAdoptCommand();
std::unique_ptr<Command> MakeQuarantineCommand();
std::unique_ptr<Command> MakeDrainCommand();
std::unique_ptr<Command> MakeAuditCommand();
std::unique_ptr<Command> MakeDumpCommand();

}  // namespace holdfast::cli
