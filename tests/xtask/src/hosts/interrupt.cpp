// Presses Ctrl-C in the console of a program as soon as there is a file: interrupt.exe <file> <program> <arguments>. Ends with
// the program's exit status.
#include <windows.h>

#include <cstdio>
#include <string>

int main(int count, char **words) {
  std::string line;
  for (int i = 2; i < count; i++) line += (i > 2 ? " " : "") + std::string(words[i]);
  STARTUPINFOA start = {};
  start.cb = sizeof start;
  start.dwFlags = STARTF_USESTDHANDLES;
  start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
  start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
  // Started from another system, it has a console that is none.
  FreeConsole();
  if (!AllocConsole()) return printf("no console: %lu\n", GetLastError()), 1;
  PROCESS_INFORMATION program = {};
  if (!CreateProcessA(nullptr, &line[0], nullptr, nullptr, TRUE, 0, nullptr, nullptr, &start, &program)) {
    return printf("%s does not start: %lu\n", line.c_str(), GetLastError()), 1;
  }
  DWORD status = STILL_ACTIVE;
  for (int looks = 0; GetFileAttributesA(words[1]) == INVALID_FILE_ATTRIBUTES; looks++) {
    if (looks > 1200) return printf("no %s after two minutes\n", words[1]), TerminateProcess(program.hProcess, 1), 1;
    if (WaitForSingleObject(program.hProcess, 100) == WAIT_OBJECT_0) return printf("the program ended by itself\n"), 1;
  }
  // For the program alone.
  SetConsoleCtrlHandler(nullptr, TRUE);
  if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0)) return printf("no Ctrl-C: %lu\n", GetLastError()), 1;
  if (WaitForSingleObject(program.hProcess, 60000) != WAIT_OBJECT_0) {
    return printf("the program goes on\n"), TerminateProcess(program.hProcess, 1), 1;
  }
  GetExitCodeProcess(program.hProcess, &status);
  return status;
}
