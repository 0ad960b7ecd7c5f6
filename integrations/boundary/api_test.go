package boundary

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
)

// invented has a field that no engine has.
type invented struct {
	container.InspectResponse
	HostConfig *struct {
		*container.HostConfig
		LeadsOut bool
	}
}

// TestEveryFieldOfTheEngine fails when the engine's API gains a field that the table does not have.
func TestEveryFieldOfTheEngine(t *testing.T) {
	for _, path := range fieldsOf("", reflect.TypeFor[container.InspectResponse](), nil) {
		if _, known := settings()[path]; !known {
			t.Errorf("the engine has %s, and the table does not: is it harmless, judged or refused?", path)
		}
	}
	missing := slices.DeleteFunc(fieldsOf("", reflect.TypeFor[invented](), nil), func(path string) bool {
		_, known := settings()[path]
		return known
	})
	if !slices.Equal(missing, []string{"HostConfig.LeadsOut"}) {
		t.Errorf("of an API with a field more, the test finds %q", missing)
	}
}

// fieldsOf are the paths of the leaves of a type, as JSON names them.
func fieldsOf(path string, of reflect.Type, within []reflect.Type) (all []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	_, isText := reflect.New(of).Interface().(encoding.TextMarshaler)
	if of.Kind() != reflect.Struct || isText || of == reflect.TypeFor[time.Time]() || of.NumField() == 0 || slices.Contains(within, of) {
		return []string{path}
	}
	names := make(map[string]bool)
	for _, embedded := range []bool{false, true} { // a field hides those of what is embedded
		for i := range of.NumField() {
			f := of.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "" {
				tag = f.Name
			}
			switch isEmbedded := f.Anonymous && tag == f.Name; {
			case isEmbedded != embedded || tag == "-":
			case isEmbedded:
				for _, p := range fieldsOf(path, f.Type, append(within, of)) {
					if first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(p, path), "."), "."); !names[first] {
						all = append(all, p)
					}
				}
			case f.IsExported():
				names[tag] = true
				all = append(all, fieldsOf(strings.TrimPrefix(path+"."+tag, "."), f.Type, append(within, of))...)
			}
		}
	}
	return all
}
