// Package docs has the pages of this folder for people at a terminal, who may have no other copy: packages install no pages.
// It changes no page: the text is what the site shows, with tables and links written out.
//
//	text, ok := docs.Page("troubleshoot")
package docs

import (
	"embed"
	"path"
	"slices"
	"strings"
)

//go:embed how-to/*.md reference/*.md explanation/*.md
var pages embed.FS

// A Topic is a page by the name of its file, without folder and ending.
type Topic struct{ Name, Title string }

// A Shelf is the topics of one folder.
type Shelf struct {
	Name   string
	Topics []Topic
}

// Shelves returns all topics in the order of their names.
func Shelves() []Shelf {
	all := []Shelf{{Name: "how-to"}, {Name: "reference"}, {Name: "explanation"}}
	for i := range all {
		files, _ := pages.ReadDir(all[i].Name)
		for _, f := range files {
			text, _ := pages.ReadFile(path.Join(all[i].Name, f.Name()))
			title, _, _ := strings.Cut(string(text), "\n")
			all[i].Topics = append(all[i].Topics, Topic{strings.TrimSuffix(f.Name(), ".md"), strings.TrimPrefix(title, "# ")})
		}
	}
	return all
}

// Names returns the names of all topics.
func Names() (all []string) {
	for _, s := range Shelves() {
		for _, t := range s.Topics {
			all = append(all, t.Name)
		}
	}
	slices.Sort(all)
	return all
}

// Page returns the text of a topic for a terminal. ok is false if there is no such topic.
func Page(name string) (text string, ok bool) {
	if strings.ContainsAny(name, "/.") {
		return "", false
	}
	for _, shelf := range Shelves() {
		if b, err := pages.ReadFile(path.Join(shelf.Name, name+".md")); err == nil {
			return plain(string(b)), true
		}
	}
	return "", false
}
