package file

import "slices"

// removedKeys says of keys that older files have what to write instead, by their place in the file.
var removedKeys = map[string]string{
	"audit.witnesses": "egressd asks no witnesses to sign checkpoints; send checkpoints to audit.anchors, and compare with egressd log verify --checkpoint FILE",
}

// placeOfKey is how removedKeys names a key of a section.
func placeOfKey(section, key string) string {
	if section == "the file" {
		return key
	}
	return section + "." + key
}

// RemovedFormat says of a format that egressd wrote before what to use instead, and "" of every other text.
func RemovedFormat(name string) string {
	if !slices.Contains([]string{"cef", "eve", "zeek"}, name) {
		return ""
	}
	return "egressd does not write " + name + "; take json, and map its fields by the table in docs/reference/export-formats.md, or take ocsf or ecs"
}
