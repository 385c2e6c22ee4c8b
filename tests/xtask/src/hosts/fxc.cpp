// Compiles HLSL files with Windows's FXC as wgpu does: fxc.exe <file that lists them>. Fails if one does not compile, or if a
// barrier of its text is not in what becomes of it.
#include <windows.h>
#include <d3dcommon.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

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

static Compile compile;
static Disassemble disassemble;
static std::vector<std::string> paths;
static volatile LONG next_path, failed;

static void judge(const std::string &path) {
  std::ifstream input(path, std::ios::binary);
  std::string hlsl((std::istreambuf_iterator<char>(input)), {});
  ID3DBlob *code = nullptr, *said = nullptr, *listing = nullptr;
  const UINT strict = 1 << 11;
  if (compile(hlsl.data(), hlsl.size(), nullptr, nullptr, nullptr, "main", "cs_5_1", strict, 0, &code, &said) < 0) {
    InterlockedIncrement(&failed);
    printf("%s: %s\n", path.c_str(), text(said).c_str());
    return;
  }
  disassemble(code->GetBufferPointer(), code->GetBufferSize(), 0, nullptr, &listing);
  int want = count(hlsl, "BarrierWithGroupSync();"), have = count(text(listing), "sync_");
  if (have < want) {
    InterlockedIncrement(&failed);
    printf("%s: %d of %d barriers are left\n", path.c_str(), have, want);
  }
  code->Release();
  listing->Release();
}

static DWORD WINAPI work(void *) {
  for (size_t i; (i = InterlockedIncrement(&next_path) - 1) < paths.size();) judge(paths[i]);
  return 0;
}

int main(int, char **argv) {
  auto library = LoadLibraryA("d3dcompiler_47.dll");
  compile = reinterpret_cast<Compile>(GetProcAddress(library, "D3DCompile"));
  disassemble = reinterpret_cast<Disassemble>(GetProcAddress(library, "D3DDisassemble"));
  if (!compile || !disassemble) return printf("no d3dcompiler_47.dll\n"), 1;
  std::ifstream list(argv[1]);
  for (std::string path; std::getline(list, path);) paths.push_back(path);
  SYSTEM_INFO machine;
  GetSystemInfo(&machine);
  std::vector<HANDLE> threads;
  for (DWORD i = 0; i < machine.dwNumberOfProcessors; i++) {
    threads.push_back(CreateThread(nullptr, 0, work, nullptr, 0, nullptr));
  }
  for (HANDLE thread : threads) WaitForSingleObject(thread, INFINITE);
  printf("FXC: %zu kernels, %ld fail\n", paths.size(), failed);
  return failed || paths.empty() ? 1 : 0;
}
