package devcontainer

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
)

// A Dockerfile decides about the labels of its image, and the label devcontainer.metadata about the container: it may be
// privileged, and mount anything. So egressd reads the file for what gives an image labels, and nobody in the container
// may change the file.

func (c *checker) dockerfile(said map[string]any) string {
	build, _ := said["build"].(map[string]any)
	name, _ := build["dockerfile"].(string)
	if old, ok := said["dockerFile"].(string); ok {
		name = old
	}
	if name = c.expanded(name); name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(c.at), name)
}

const dockerfileSetting = "build.dockerfile"

// fixed refuses a file of the settings that somebody in the container can change.
func (c *checker) fixed(setting, file string) error {
	const instead = "mv it into .devcontainer"
	settings := filepath.Join(c.Folder, ".devcontainer")
	if rest, ok := strings.CutPrefix(file, settings+"/"); ok {
		if hostfiles.ResolveLinks(file) != filepath.Join(hostfiles.ResolveLinks(settings), rest) {
			return c.breaks(setting, file+" is behind a link: somebody in the container can change what it leads to, or the link", instead)
		}
		return nil
	}
	for _, path := range []string{file, hostfiles.ResolveLinks(file)} {
		if place := c.replaceable(setting, path); place != "" && !(setting == dockerfileSetting && c.hold(path, true)) {
			return c.breaks(setting, file+" lies in "+place+": somebody in the container can write a label "+metadataLabel+" into it, and the next container is privileged", instead+"; or --trust "+file)
		}
	}
	return nil
}

// readDockerfile judges the images that a Dockerfile begins with, and what gives its image labels.
func (c *checker) readDockerfile(at string) error {
	const setting = dockerfileSetting
	if err := c.fixed(setting, at); err != nil {
		return err
	}
	text, err := os.ReadFile(at)
	if err != nil {
		return c.breaks(setting, err.Error(), "a Dockerfile that is there")
	}
	images, labels, problem := basesOf(string(text))
	for _, label := range labels {
		if boundary.ReservedLabel(label) || slices.Contains(c.Machine.Labels, label) {
			problem = "has LABEL " + label + ", by which containers are told apart"
		}
	}
	if problem != "" {
		return c.breaks(setting, at+" "+problem, "leave that out; or look at it, and --trust "+at)
	}
	for _, image := range images {
		if err := c.image(setting, image); err != nil {
			return err
		}
	}
	return nil
}

// basesOf returns the images that a Dockerfile begins with, and words that may be names of its labels, or why these cannot be told.
//
// The tools of dev containers look for the image by patterns of their own, in the text as it is. A name stands for a stage if the tools
// and Docker agree about it. Otherwise it is an image.
func basesOf(text string) (images, labels []string, problem string) {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	if strange := strangeLine().FindString(text); strange != "" {
		return nil, nil, fmt.Sprintf("has %.20q: some readers have a line end or begin there, others not", strange)
	}
	for _, d := range directive().FindAllStringSubmatch(text, -1) {
		name, is := strings.ToLower(d[1]), d[2]
		if name == "escape" && is != `\` || name == "syntax" && !dockersSyntax().MatchString(is) {
			return nil, nil, "has the directive " + name + "=" + is + ": something else than Docker's own reader makes an image of it"
		}
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return nil, nil, "is no Dockerfile"
	}
	instructions, documents := joined(text), false
	if strings.Contains(text, metadataLabel) || slices.ContainsFunc(instructions, func(i string) bool { return strings.Contains(i, metadataLabel) }) {
		return nil, nil, "has " + metadataLabel + " in it, by which an image brings settings with it"
	}
	var named []string
	for _, f := range stageLine().FindAllStringSubmatch(text, -1) {
		named = append(named, f[1])
	}
	stages := []string{"scratch"}
	for i, line := range slices.Concat(instructions, strings.Split(text, "\n")) {
		documents = documents || strings.Contains(line, "<<")
		f := slices.DeleteFunc(strings.Fields(line), func(w string) bool { return strings.HasPrefix(w, "--") })
		if len(f) > 0 && strings.EqualFold(f[0], "ONBUILD") {
			f = f[1:]
		}
		// The tools of dev containers take the next line for FROM without an image, and an image called unknown for FROMAGE.
		if len(f) > 0 && len(f[0]) >= 4 && strings.EqualFold(f[0][:4], "FROM") && (len(f) == 1 || len(f[0]) > 4) {
			return nil, nil, "has a line that begins with FROM, without an image"
		}
		if len(f) < 2 {
			continue
		}
		switch strings.ToUpper(f[0]) {
		case "LABEL":
			for _, word := range f[1:] {
				name, _, _ := strings.Cut(word, "=")
				labels = append(labels, name)
			}
			if word := unclearLabel(f[1:]); word != "" {
				return nil, nil, "has LABEL " + word + ": which label that is depends on how the name is read; write it without variables, quotes and backslashes"
			}
		case "FROM":
			if !slices.Contains(stages, f[1]) { // in other letters it is an image to some tools
				images = append(images, f[1])
			}
			// A line within a here-document names no stage, and this reader does not know where one ends.
			if i < len(instructions) && len(f) > 3 && strings.EqualFold(f[2], "AS") && !documents && slices.Contains(named, f[3]) {
				stages = append(stages, f[3])
			}
		}
	}
	if len(images) == 0 && !strings.Contains(strings.ToUpper(text), "FROM") {
		return nil, nil, "has no FROM"
	}
	return slices.Compact(images), labels, ""
}

// joined are the instructions of a Dockerfile: its lines, with those that go on behind a backslash put together.
func joined(text string) (all []string) {
	begun := ""
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimRight(line, "\r \t")
		if first := strings.TrimSpace(line); strings.HasPrefix(first, "#") || first == "" {
			continue
		}
		if before, ok := strings.CutSuffix(line, `\`); ok && !strings.HasSuffix(before, `\`) {
			begun += before
			continue
		}
		all, begun = append(all, begun+line), ""
	}
	return append(all, begun)
}

// unclearLabel is a word of LABEL whose name is not what is written, or "".
func unclearLabel(words []string) string {
	for i, word := range words {
		name, _, has := strings.Cut(word, "=")
		if word == `\` { // the names are on the next lines
			continue
		}
		if (has || i == 0) && strings.ContainsAny(name, "$\\\"'`") {
			return fmt.Sprintf("%.60s", word)
		}
	}
	return ""
}

// strangeLine finds characters that end a line for JavaScript and not for Docker. It finds FROM behind spaces that ASCII does not have.
var strangeLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[\r\v\f\x{85}\x{2028}\x{2029}]|(?mi:^[\t\pZ\x{feff}]*[^\t \P{Z}\x{feff}][\t\pZ\x{feff}]*FROM)`)
})

// stageLine finds lines that name a stage, as the tools of dev containers do: in one line.
var stageLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[\t ]*[Ff][Rr][Oo][Mm][\t ]+(?:--platform=\S+[\t ]+)?[^\s-]\S*[\t ]+[Aa][Ss][\t ]+([^\s"']+)`)
})

// directive finds lines by which a Dockerfile says what reads it.
var directive = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?mi)^\s*(?:#|//)\s*(syntax|escape)\s*=\s*(\S+)`)
})

var dockersSyntax = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(docker\.io/)?docker/dockerfile([:@][\w.:-]+)*$`)
})

// buildArgument refuses arguments of a build that say what reads the Dockerfile.
func (c *checker) buildArgument(setting, name string) error {
	if name != "BUILDKIT_INLINE_CACHE" && (strings.HasPrefix(name, "BUILDKIT_") || strings.Contains(name, "$")) {
		return c.breaks(setting, name+": it may have something else than Docker's own reader make the image", "leave it out")
	}
	return nil
}
