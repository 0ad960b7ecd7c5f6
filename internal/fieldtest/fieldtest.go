// Package fieldtest is for tests of code that names the fields of a struct one by one, such as a
// key or a comparison. Such a test fails when a field is added and the code does not name it.
//
//	for name, r := range fieldtest.Each(typicalRequest) {
//		if keyOf(r) == keyOf(typicalRequest()) {
//			t.Errorf("the key does not hold %s", name)
//		}
//	}
package fieldtest

import (
	"iter"
	"net/netip"
	"reflect"
	"time"
)

// Each yields a new value of typical for every field in it, with that one field changed, and the
// path of the field. It goes into structs and behind pointers that are not nil. Fields that are
// not exported stay as they are.
func Each[T any](typical func() *T) iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) {
		for n := 0; ; n++ {
			v, left := typical(), n
			name := change(reflect.ValueOf(v).Elem(), "", &left)
			if name == "" || !yield(name[1:], v) {
				return
			}
		}
	}
}

// change changes the field of v that comes after left others. It returns the path of the field,
// or "" where v has fewer fields.
func change(v reflect.Value, name string, left *int) string {
	switch {
	case !v.CanSet():
		return ""
	case v.Type() == reflect.TypeFor[time.Time](), v.Type() == reflect.TypeFor[netip.Addr]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if changed := change(v.Field(i), name+"."+v.Type().Field(i).Name, left); changed != "" {
				return changed
			}
		}
		return ""
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return change(v.Elem(), name, left)
	}
	if *left--; *left >= 0 {
		return ""
	}
	v.Set(another(v))
	return name
}

func another(v reflect.Value) reflect.Value {
	switch old := v.Interface().(type) {
	case time.Time:
		return reflect.ValueOf(old.Add(time.Hour))
	case netip.Addr:
		return reflect.ValueOf(netip.MustParseAddr("192.0.2.9"))
	}
	switch v.Kind() {
	case reflect.String:
		return reflect.ValueOf(v.String() + "x").Convert(v.Type())
	case reflect.Bool:
		return reflect.ValueOf(!v.Bool()).Convert(v.Type())
	case reflect.Slice:
		return reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1)
	case reflect.Map:
		return reflect.MakeMap(v.Type())
	case reflect.Pointer:
		return reflect.New(v.Type().Elem())
	}
	return reflect.ValueOf(77).Convert(v.Type())
}
