//! Advice on what to install if no adapter is found.

/// The way to get DXC, the better compiler of kernels for DX12.
pub const GET_DXC: [&str; 2] = [
    "a device of shader model 6 has DXC if dxcompiler.dll, 1.8.2502 or later, lies beside this program:",
    "github.com/microsoft/DirectXShaderCompiler/releases",
];

/// The advice for this platform, line by line.
pub fn advice() -> &'static [&'static str] {
    if cfg!(target_os = "windows") {
        &[
            "Install the current driver of the GPU's vendor (NVIDIA, AMD, Intel, Qualcomm): it brings DirectX 12 and Vulkan.",
            "Over remote desktop or in a virtual machine the GPU must be handed through.",
        ]
    } else if cfg!(any(target_os = "macos", target_os = "ios")) {
        &["Metal is part of the system: a Mac of 2012 or later with a current macOS has it; a virtual machine may not."]
    } else {
        &[
            "Intel, AMD and others:  Debian, Ubuntu: apt install mesa-vulkan-drivers;  Fedora: dnf install mesa-vulkan-drivers;",
            "                        Arch: pacman -S vulkan-intel, vulkan-radeon or vulkan-nouveau",
            "NVIDIA:                 the vendor's driver; Debian's and Ubuntu's packages are named nvidia-driver",
            "In a container:         hand /dev/dri through; for NVIDIA run it with --gpus all and with graphics among",
            "                        NVIDIA_DRIVER_CAPABILITIES",
            "Without a GPU:          mesa-vulkan-drivers also has a renderer on the CPU, llvmpipe, for --device gpu: it is slow",
            "To look at the drivers: vulkaninfo --summary, of the package vulkan-tools",
        ]
    }
}
