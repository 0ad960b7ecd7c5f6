package record

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestCloneSharesNothing(t *testing.T) {
	var c Decoder
	var s Buffer
	if err := c.Decode(&s, everything); err != nil {
		t.Fatal(err)
	}
	copied, err := Decode([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	kept := s.Clone()
	if err := c.Decode(&s, strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '1'
		}
		return r
	}, strings.Replace(everything, "2026-11-20", "2011-11-11", 1))); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(kept, copied) {
		t.Errorf("the copy became %+v", kept)
	}
	from := uintptr(unsafe.Pointer(unsafe.StringData(everything)))
	texts := 0
	eachPart(reflect.ValueOf(kept).Elem(), func(v reflect.Value) {
		if v.Kind() != reflect.String {
			return
		}
		texts++
		if at := uintptr(unsafe.Pointer(unsafe.StringData(v.String()))); at >= from && at < from+uintptr(len(everything)) {
			t.Errorf("%q keeps the line alive", v)
		}
	})
	named := 0
	eachText(kept, func(*string) { named++ })
	if named != texts {
		t.Errorf("eachText names %d texts of a record that has %d", named, texts)
	}
	borrows := map[unsafe.Pointer]bool{}
	eachPart(reflect.ValueOf(&s.Record).Elem(), func(v reflect.Value) {
		if v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			borrows[v.UnsafePointer()] = true
		}
	})
	eachPart(reflect.ValueOf(kept).Elem(), func(v reflect.Value) {
		if (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice) && borrows[v.UnsafePointer()] {
			t.Errorf("the copy shares a %s", v.Type())
		}
	})
}

// eachPart calls do with each field of v, and each element of its lists.
func eachPart(v reflect.Value, do func(reflect.Value)) {
	do(v)
	switch v.Kind() {
	case reflect.Pointer:
		eachPart(v.Elem(), do)
	case reflect.Slice:
		for i := range v.Len() {
			eachPart(v.Index(i), do)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type() != reflect.TypeFor[time.Time]() {
				eachPart(v.Field(i), do)
			}
		}
	}
}
