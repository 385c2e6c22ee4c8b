// As much of the command `dxc` as `cargo xtask shaders` calls, on the library that the package compushady brings:
// dxc <arguments of the compiler> -Fo <output> <input>
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dxcapi.h"

static int fail(const std::string &why) {
  fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

int main(int argc, char **argv) {
  if (argc < 4 || std::string(argv[argc - 3]) != "-Fo") return fail("expected: dxc <arguments> -Fo <output> <input>");
  void *library = dlopen(LIBRARY, RTLD_NOW);
  if (!library) return fail(dlerror());
  auto create = reinterpret_cast<DxcCreateInstanceProc>(dlsym(library, "DxcCreateInstance"));
  IDxcCompiler3 *compiler = nullptr;
  if (!create || create(CLSID_DxcCompiler, __uuidof(IDxcCompiler3), reinterpret_cast<void **>(&compiler)))
    return fail("the library gives no compiler");

  std::ifstream input(argv[argc - 1], std::ios::binary);
  if (!input) return fail(std::string("cannot read ") + argv[argc - 1]);
  std::string text((std::istreambuf_iterator<char>(input)), {});
  DxcBuffer buffer{text.data(), text.size(), DXC_CP_UTF8};
  std::vector<std::wstring> words;
  for (int i = 1; i < argc - 3; i++) words.emplace_back(argv[i], argv[i] + std::string(argv[i]).size());
  std::vector<LPCWSTR> arguments;
  for (const auto &word : words) arguments.push_back(word.c_str());

  IDxcResult *result = nullptr;
  if (compiler->Compile(&buffer, arguments.data(), static_cast<UINT32>(arguments.size()), nullptr,
                        __uuidof(IDxcResult), reinterpret_cast<void **>(&result)) || !result)
    return fail("the compiler has failed");
  HRESULT status = 0;
  result->GetStatus(&status);
  if (status) {
    IDxcBlobEncoding *said = nullptr;
    result->GetErrorBuffer(&said);
    return fail(said ? std::string(static_cast<char *>(said->GetBufferPointer()), said->GetBufferSize()) : "refused");
  }
  IDxcBlob *object = nullptr;
  result->GetResult(&object);
  if (!object || !object->GetBufferSize()) return fail("nothing was compiled");
  std::ofstream output(argv[argc - 2], std::ios::binary);
  output.write(static_cast<char *>(object->GetBufferPointer()), static_cast<std::streamsize>(object->GetBufferSize()));
  return output.good() ? 0 : fail(std::string("cannot write ") + argv[argc - 2]);
}
