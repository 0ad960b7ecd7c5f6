package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// A File is one of an image.
type File struct {
	Path string // in the image, without the first slash
	From string // on this machine; else Text
	Text string
	Link string // what it is a symbolic link to
	Mode int64
}

// Import makes an image of files. changes are instructions of a Dockerfile, as
// docker import takes them.
func (e *Engine) Import(name string, files []File, changes ...string) error {
	archive, err := pack(files)
	if err != nil {
		return err
	}
	args := []string{"import"}
	for _, c := range changes {
		args = append(args, "--change", c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	cmd := e.Command(ctx, append(args, "-", name)...)
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// pack makes a tar archive. Folders come from the names of the files.
func pack(files []File) (*bytes.Buffer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		text := []byte(f.Text)
		if f.From != "" {
			var err error
			if text, err = os.ReadFile(f.From); err != nil {
				return nil, err
			}
		}
		h := &tar.Header{Name: f.Path, Mode: f.Mode, Size: int64(len(text)), Typeflag: tar.TypeReg}
		switch {
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Size, text = tar.TypeSymlink, f.Link, 0, nil
		case strings.HasSuffix(f.Path, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	return &archive, w.Close()
}

// images makes the two that there are without asking.
func (e *Engine) images(probe string) error {
	itself := File{Path: ProbePath[1:], From: probe, Mode: 0o755}
	if err := e.Import(Scratch, []File{itself}, "USER 65532:65532", "ENTRYPOINT ["+`"`+ProbePath+`"`+"]", `CMD ["wait"]`); err != nil {
		return err
	}
	shell, err := ShellFiles()
	if err != nil {
		return err
	}
	return e.Import(Shell, append(shell, itself), `CMD ["`+ProbePath+`", "wait"]`, "ENV PATH=/bin")
}

// ShellFiles returns the files of an image with only BusyBox and links for its commands in /bin.
func ShellFiles() ([]File, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, err
	}
	files := []File{
		{Path: "tmp/", Mode: 0o1777},
		{Path: "root/", Mode: 0o700},
		{Path: "etc/passwd", Text: "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n", Mode: 0o644},
		{Path: "bin/busybox", From: path, Mode: 0o755},
	}
	for _, command := range strings.Fields(string(list)) {
		if command != "busybox" {
			files = append(files, File{Path: "bin/" + command, Link: "busybox", Mode: 0o777})
		}
	}
	return files, nil
}
