#include "coordinator/ui/ui_options.h"

namespace holdfast::ui {

void UiOptions::Bind(ConfigSchema& schema) {
  schema.Add("ui.listen", &listen,
             "Serve a page for operators at http://HOST:PORT/ or at unix:/path (the socket is for "
             "this user and its group). The page only shows. Beyond loopback only by https, with "
             "ui.token_file and [tls]. Port 0 takes a free one; `holdfast ui` prints the address. "
             "Empty: no page.");
  schema.Add("ui.token_file", &token_file,
             "File of the token that the page asks for, 16 to 4096 characters, unreadable for "
             "other users. With [tls] the address is then https, also on loopback. A changed file "
             "applies at once.");
}

HttpOptions HttpOf(const UiOptions& options) { return {"ui", options.listen, options.token_file}; }

Status CheckUi(const UiOptions& options, const HttpCertificate& tls) {
  return options.enabled() ? CheckHttp(HttpOf(options), tls) : Status::Ok();
}

}  // namespace holdfast::ui
