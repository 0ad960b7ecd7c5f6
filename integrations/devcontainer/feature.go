package devcontainer

import (
	"embed"
	"io/fs"
)

//go:embed src/egressd
var source embed.FS

// A File is one of the Feature. Path is relative to its folder.
type File struct {
	Path string
	Text []byte
	Mode fs.FileMode
}

// Feature returns the files of the Feature in the order of their names.
func Feature() (files []File, err error) {
	const root = "src/egressd"
	entries, err := source.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := source.ReadFile(root + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if len(text) > 2 && string(text[:2]) == "#!" { // a file that is embedded has no mode
			mode = 0o755
		}
		files = append(files, File{e.Name(), text, mode})
	}
	return files, nil
}
