// Compiles HLSL files with Windows's FXC as wgpu does: fxc.exe <file that lists them>. Fails if one does not compile, or if a
// barrier of its text is not in what becomes of it.
#include <windows.h>
#include <d3dcommon.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

typedef HRESULT(WINAPI *Compile)(LPCVOID, SIZE_T, LPCSTR, const void *, void *, LPCSTR, LPCSTR, UINT, UINT, ID3DBlob **,
                                 ID3DBlob **);
typedef HRESULT(WINAPI *Disassemble)(LPCVOID, SIZE_T, UINT, LPCSTR, ID3DBlob **);

static int count(const std::string &text, const char *word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) found++;
  return found;
}

static std::string text(ID3DBlob *blob) {
  return blob ? std::string(static_cast<char *>(blob->GetBufferPointer()), blob->GetBufferSize()) : "nothing said";
}

int main(int, char **argv) {
  auto library = LoadLibraryA("d3dcompiler_47.dll");
  auto compile = reinterpret_cast<Compile>(GetProcAddress(library, "D3DCompile"));
  auto disassemble = reinterpret_cast<Disassemble>(GetProcAddress(library, "D3DDisassemble"));
  if (!compile || !disassemble) return printf("no d3dcompiler_47.dll\n"), 1;
  std::ifstream list(argv[1]);
  int compiled = 0, failed = 0;
  for (std::string path; std::getline(list, path);) {
    std::ifstream input(path, std::ios::binary);
    std::string hlsl((std::istreambuf_iterator<char>(input)), {});
    ID3DBlob *code = nullptr, *said = nullptr, *listing = nullptr;
    const UINT strict = 1 << 11;
    compiled++;
    if (compile(hlsl.data(), hlsl.size(), nullptr, nullptr, nullptr, "main", "cs_5_1", strict, 0, &code, &said) < 0) {
      failed++;
      printf("%s: %s\n", path.c_str(), text(said).c_str());
      continue;
    }
    disassemble(code->GetBufferPointer(), code->GetBufferSize(), 0, nullptr, &listing);
    int want = count(hlsl, "BarrierWithGroupSync();"), have = count(text(listing), "sync_");
    if (have < want) {
      failed++;
      printf("%s: %d of %d barriers are left\n", path.c_str(), have, want);
    }
    code->Release();
    listing->Release();
  }
  printf("FXC: %d kernels, %d fail\n", compiled, failed);
  return failed || !compiled ? 1 : 0;
}
