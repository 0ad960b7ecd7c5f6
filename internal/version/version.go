// Package version says which build of egressd is running.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// A Build says which egressd this is.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from files that are not in Commit
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// This reads what the Go toolchain wrote into the binary.
func This() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String says in one line which egressd this is.
func (b Build) String() string {
	text := "egressd " + b.Version
	if b.Commit != "" {
		text += " commit " + b.Commit
	}
	if b.Modified {
		text += " (modified)"
	}
	return fmt.Sprintf("%s %s %s/%s", text, b.Go, b.OS, b.Arch)
}
