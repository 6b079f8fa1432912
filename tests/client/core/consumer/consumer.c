#include <holdfast/holdfast.h>
#include <stdio.h>
#include <string.h>

/* Without an agent, opening returns an error, and an offline client works as far as possible. */
int main(void) {
  float data[4] = {1, 2, 3, 4};
  uint64_t shape[1] = {4};
  holdfast_tensor tensor;
  holdfast_options options = HOLDFAST_OPTIONS_INIT;
  holdfast_client* client = NULL;
  holdfast_error error;
  memset(&tensor, 0, sizeof tensor);
  tensor.name = "w";
  tensor.data = data;
  tensor.shape = shape;
  tensor.dimensions = 1;
  tensor.dtype = HOLDFAST_F32;
  options.job = "consumer";
  options.world = 1;
  options.connect_timeout_ms = 50;
  if (holdfast_api_version() != HOLDFAST_API_VERSION) return 1;
  if (holdfast_open(&options, &tensor, 1, &client, &error) != HOLDFAST_UNAVAILABLE) return 2;
  if (client != NULL || strstr(error.message, "none.sock") == NULL) return 3;
  options.start_offline = 1;
  if (holdfast_open(&options, &tensor, 1, &client, &error) != HOLDFAST_OK) return 4;
  if (holdfast_save(client, 1, NULL, &error) != HOLDFAST_UNAVAILABLE) return 5;
  if (holdfast_guard(client, NULL, NULL) != HOLDFAST_OK) return 6;
  if (holdfast_close(client, 100, &error) != HOLDFAST_OK) return 7;
  printf("%s %s\n", holdfast_version_string(), holdfast_code_name(HOLDFAST_UNAVAILABLE));
  return 0;
}
