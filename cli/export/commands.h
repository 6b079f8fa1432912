#pragma once

#include <memory>

#include "cli/core/command.h"

// The commands of this room.

namespace holdfast::cli {

std::unique_ptr<Command> MakeRestoreCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeImportCommand();

}  // namespace holdfast::cli
