package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	sshSettings     = "/etc/ssh/ssh_config"
	sshSettingsMost = 32       // files that are copied
	sshSettingsSize = 64 << 10 // bytes of each
)

// coverSSH has the program see copies of its own of the files that the machine's settings of ssh include. ssh refuses files
// of strangers there, and root is a stranger in a user namespace that maps this user alone.
func coverSSH(covered map[string][]byte) {
	if os.Geteuid() == 0 {
		return
	}
	coverIncluded(covered, sshSettings, 0)
}

// coverIncluded adds copies of the files of root that the one at path includes.
func coverIncluded(covered map[string][]byte, path string, files int) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return files
	}
	for line := range strings.Lines(string(text)) {
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n=\"", r) })
		if len(words) < 2 || !strings.EqualFold(words[0], "include") {
			continue
		}
		for _, pattern := range words[1:] {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(sshSettings), pattern)
			}
			all, _ := filepath.Glob(pattern) // a bad pattern names nothing
			for _, included := range all {
				if files == sshSettingsMost || covered[included] != nil {
					continue
				}
				if text := ofRoot(included); text != nil {
					covered[included] = text
					files = coverIncluded(covered, included, files+1)
				}
			}
		}
	}
	return files
}

// ofRoot returns the text of a file that root has and nobody else may write, else nil.
func ofRoot(path string) []byte {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || info.Size() > sshSettingsSize {
		return nil
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return append([]byte{}, text...)
}
