/* test_pjrt_abi.c – the hand-written PJRT header against the table of layouts that it was written from.
 *
 * Every field of every struct (offset and size), every size that is passed as struct_size, every constant, and every
 * place in the table of functions; and the other way round, that no field of these structs was left out. The table
 * of layouts is ../shared/reference/pjrt_abi.tsv; without it only what follows from C's rules is checked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "xla/pjrt_abi.h"
#include "xla/profiler_abi.h"

typedef struct field {
    const char *type, *name;
    size_t offset, size;
} field;
typedef struct named {
    const char *name;
    size_t value;
} named;

/* clang-format off */
#define F(T, f) {#T, #f, offsetof(T, f), sizeof(((T *)NULL)->f)}
#define A(f) F(PJRT_Api, f)
static const field fields[] = {
    F(PJRT_Extension_Base, struct_size), F(PJRT_Extension_Base, type), F(PJRT_Extension_Base, next),
    F(PJRT_Api_Version, struct_size), F(PJRT_Api_Version, extension_start),
    F(PJRT_Api_Version, major_version), F(PJRT_Api_Version, minor_version),
    F(PJRT_NamedValue, struct_size), F(PJRT_NamedValue, extension_start), F(PJRT_NamedValue, name),
    F(PJRT_NamedValue, name_size), F(PJRT_NamedValue, type), F(PJRT_NamedValue, string_value),
    F(PJRT_NamedValue, int64_value), F(PJRT_NamedValue, int64_array_value),
    F(PJRT_NamedValue, float_value), F(PJRT_NamedValue, bool_value), F(PJRT_NamedValue, value_size),
    F(PJRT_Error_Destroy_Args, struct_size), F(PJRT_Error_Destroy_Args, extension_start),
    F(PJRT_Error_Destroy_Args, error), F(PJRT_Error_Message_Args, struct_size),
    F(PJRT_Error_Message_Args, extension_start), F(PJRT_Error_Message_Args, error),
    F(PJRT_Error_Message_Args, message), F(PJRT_Error_Message_Args, message_size),
    F(PJRT_Error_GetCode_Args, struct_size), F(PJRT_Error_GetCode_Args, extension_start),
    F(PJRT_Error_GetCode_Args, error), F(PJRT_Error_GetCode_Args, code),
    F(PJRT_Plugin_Initialize_Args, struct_size), F(PJRT_Plugin_Initialize_Args, extension_start),
    F(PJRT_Plugin_Attributes_Args, struct_size), F(PJRT_Plugin_Attributes_Args, extension_start),
    F(PJRT_Plugin_Attributes_Args, attributes), F(PJRT_Plugin_Attributes_Args, num_attributes),
    F(PJRT_Event_Destroy_Args, struct_size), F(PJRT_Event_Destroy_Args, extension_start),
    F(PJRT_Event_Destroy_Args, event), F(PJRT_Event_IsReady_Args, struct_size),
    F(PJRT_Event_IsReady_Args, extension_start), F(PJRT_Event_IsReady_Args, event),
    F(PJRT_Event_IsReady_Args, is_ready), F(PJRT_Event_Error_Args, struct_size),
    F(PJRT_Event_Error_Args, extension_start), F(PJRT_Event_Error_Args, event),
    F(PJRT_Event_Await_Args, struct_size), F(PJRT_Event_Await_Args, extension_start),
    F(PJRT_Event_Await_Args, event), F(PJRT_Event_OnReady_Args, struct_size),
    F(PJRT_Event_OnReady_Args, extension_start), F(PJRT_Event_OnReady_Args, event),
    F(PJRT_Event_OnReady_Args, callback), F(PJRT_Event_OnReady_Args, user_arg),
    F(PJRT_KeyValueGetCallback_Args, struct_size),
    F(PJRT_KeyValueGetCallback_Args, extension_start), F(PJRT_KeyValueGetCallback_Args, key),
    F(PJRT_KeyValueGetCallback_Args, key_size), F(PJRT_KeyValueGetCallback_Args, timeout_in_ms),
    F(PJRT_KeyValueGetCallback_Args, callback_error), F(PJRT_KeyValueGetCallback_Args, user_arg),
    F(PJRT_KeyValueGetCallback_Args, value), F(PJRT_KeyValueGetCallback_Args, value_size),
    F(PJRT_KeyValueGetCallback_Args, value_deleter_callback),
    F(PJRT_KeyValueTryGetCallback_Args, struct_size),
    F(PJRT_KeyValueTryGetCallback_Args, extension_start), F(PJRT_KeyValueTryGetCallback_Args, key),
    F(PJRT_KeyValueTryGetCallback_Args, key_size),
    F(PJRT_KeyValueTryGetCallback_Args, callback_error),
    F(PJRT_KeyValueTryGetCallback_Args, user_arg), F(PJRT_KeyValueTryGetCallback_Args, value),
    F(PJRT_KeyValueTryGetCallback_Args, value_size),
    F(PJRT_KeyValueTryGetCallback_Args, value_deleter_callback),
    F(PJRT_KeyValuePutCallback_Args, struct_size),
    F(PJRT_KeyValuePutCallback_Args, extension_start), F(PJRT_KeyValuePutCallback_Args, key),
    F(PJRT_KeyValuePutCallback_Args, key_size), F(PJRT_KeyValuePutCallback_Args, value),
    F(PJRT_KeyValuePutCallback_Args, value_size), F(PJRT_KeyValuePutCallback_Args, callback_error),
    F(PJRT_KeyValuePutCallback_Args, user_arg), F(PJRT_Client_Create_Args, struct_size),
    F(PJRT_Client_Create_Args, extension_start), F(PJRT_Client_Create_Args, create_options),
    F(PJRT_Client_Create_Args, num_options), F(PJRT_Client_Create_Args, kv_get_callback),
    F(PJRT_Client_Create_Args, kv_get_user_arg), F(PJRT_Client_Create_Args, kv_put_callback),
    F(PJRT_Client_Create_Args, kv_put_user_arg), F(PJRT_Client_Create_Args, client),
    F(PJRT_Client_Create_Args, kv_try_get_callback),
    F(PJRT_Client_Create_Args, kv_try_get_user_arg), F(PJRT_Client_Destroy_Args, struct_size),
    F(PJRT_Client_Destroy_Args, extension_start), F(PJRT_Client_Destroy_Args, client),
    F(PJRT_Client_PlatformName_Args, struct_size),
    F(PJRT_Client_PlatformName_Args, extension_start), F(PJRT_Client_PlatformName_Args, client),
    F(PJRT_Client_PlatformName_Args, platform_name),
    F(PJRT_Client_PlatformName_Args, platform_name_size),
    F(PJRT_Client_ProcessIndex_Args, struct_size),
    F(PJRT_Client_ProcessIndex_Args, extension_start), F(PJRT_Client_ProcessIndex_Args, client),
    F(PJRT_Client_ProcessIndex_Args, process_index),
    F(PJRT_Client_PlatformVersion_Args, struct_size),
    F(PJRT_Client_PlatformVersion_Args, extension_start),
    F(PJRT_Client_PlatformVersion_Args, client),
    F(PJRT_Client_PlatformVersion_Args, platform_version),
    F(PJRT_Client_PlatformVersion_Args, platform_version_size),
    F(PJRT_Client_TopologyDescription_Args, struct_size),
    F(PJRT_Client_TopologyDescription_Args, extension_start),
    F(PJRT_Client_TopologyDescription_Args, client),
    F(PJRT_Client_TopologyDescription_Args, topology), F(PJRT_Client_Devices_Args, struct_size),
    F(PJRT_Client_Devices_Args, extension_start), F(PJRT_Client_Devices_Args, client),
    F(PJRT_Client_Devices_Args, devices), F(PJRT_Client_Devices_Args, num_devices),
    F(PJRT_Client_AddressableDevices_Args, struct_size),
    F(PJRT_Client_AddressableDevices_Args, extension_start),
    F(PJRT_Client_AddressableDevices_Args, client),
    F(PJRT_Client_AddressableDevices_Args, addressable_devices),
    F(PJRT_Client_AddressableDevices_Args, num_addressable_devices), F(PJRT_Program, struct_size),
    F(PJRT_Program, extension_start), F(PJRT_Program, code), F(PJRT_Program, code_size),
    F(PJRT_Program, format), F(PJRT_Program, format_size), F(PJRT_Client_Compile_Args, struct_size),
    F(PJRT_Client_Compile_Args, extension_start), F(PJRT_Client_Compile_Args, client),
    F(PJRT_Client_Compile_Args, program), F(PJRT_Client_Compile_Args, compile_options),
    F(PJRT_Client_Compile_Args, compile_options_size), F(PJRT_Client_Compile_Args, executable),
    F(PJRT_DeviceDescription_Id_Args, struct_size),
    F(PJRT_DeviceDescription_Id_Args, extension_start),
    F(PJRT_DeviceDescription_Id_Args, device_description), F(PJRT_DeviceDescription_Id_Args, id),
    F(PJRT_DeviceDescription_ProcessIndex_Args, struct_size),
    F(PJRT_DeviceDescription_ProcessIndex_Args, extension_start),
    F(PJRT_DeviceDescription_ProcessIndex_Args, device_description),
    F(PJRT_DeviceDescription_ProcessIndex_Args, process_index),
    F(PJRT_DeviceDescription_Attributes_Args, struct_size),
    F(PJRT_DeviceDescription_Attributes_Args, extension_start),
    F(PJRT_DeviceDescription_Attributes_Args, device_description),
    F(PJRT_DeviceDescription_Attributes_Args, num_attributes),
    F(PJRT_DeviceDescription_Attributes_Args, attributes),
    F(PJRT_DeviceDescription_Kind_Args, struct_size),
    F(PJRT_DeviceDescription_Kind_Args, extension_start),
    F(PJRT_DeviceDescription_Kind_Args, device_description),
    F(PJRT_DeviceDescription_Kind_Args, device_kind),
    F(PJRT_DeviceDescription_Kind_Args, device_kind_size),
    F(PJRT_DeviceDescription_DebugString_Args, struct_size),
    F(PJRT_DeviceDescription_DebugString_Args, extension_start),
    F(PJRT_DeviceDescription_DebugString_Args, device_description),
    F(PJRT_DeviceDescription_DebugString_Args, debug_string),
    F(PJRT_DeviceDescription_DebugString_Args, debug_string_size),
    F(PJRT_Device_GetDescription_Args, struct_size),
    F(PJRT_Device_GetDescription_Args, extension_start), F(PJRT_Device_GetDescription_Args, device),
    F(PJRT_Device_GetDescription_Args, device_description),
    F(PJRT_Device_LocalHardwareId_Args, struct_size),
    F(PJRT_Device_LocalHardwareId_Args, extension_start),
    F(PJRT_Device_LocalHardwareId_Args, device),
    F(PJRT_Device_LocalHardwareId_Args, local_hardware_id),
    F(PJRT_Device_MemoryStats_Args, struct_size), F(PJRT_Device_MemoryStats_Args, extension_start),
    F(PJRT_Device_MemoryStats_Args, device), F(PJRT_Device_MemoryStats_Args, bytes_in_use),
    F(PJRT_Device_MemoryStats_Args, peak_bytes_in_use),
    F(PJRT_Device_MemoryStats_Args, peak_bytes_in_use_is_set),
    F(PJRT_Device_MemoryStats_Args, num_allocs), F(PJRT_Device_MemoryStats_Args, num_allocs_is_set),
    F(PJRT_Device_MemoryStats_Args, largest_alloc_size),
    F(PJRT_Device_MemoryStats_Args, largest_alloc_size_is_set),
    F(PJRT_Device_MemoryStats_Args, bytes_limit),
    F(PJRT_Device_MemoryStats_Args, bytes_limit_is_set),
    F(PJRT_Device_MemoryStats_Args, bytes_reserved),
    F(PJRT_Device_MemoryStats_Args, bytes_reserved_is_set),
    F(PJRT_Device_MemoryStats_Args, peak_bytes_reserved),
    F(PJRT_Device_MemoryStats_Args, peak_bytes_reserved_is_set),
    F(PJRT_Device_MemoryStats_Args, bytes_reservable_limit),
    F(PJRT_Device_MemoryStats_Args, bytes_reservable_limit_is_set),
    F(PJRT_Device_MemoryStats_Args, largest_free_block_bytes),
    F(PJRT_Device_MemoryStats_Args, largest_free_block_bytes_is_set),
    F(PJRT_Device_MemoryStats_Args, pool_bytes), F(PJRT_Device_MemoryStats_Args, pool_bytes_is_set),
    F(PJRT_Device_MemoryStats_Args, peak_pool_bytes),
    F(PJRT_Device_MemoryStats_Args, peak_pool_bytes_is_set),
    F(PJRT_Executable_Destroy_Args, struct_size), F(PJRT_Executable_Destroy_Args, extension_start),
    F(PJRT_Executable_Destroy_Args, executable), F(PJRT_LoadedExecutable_Destroy_Args, struct_size),
    F(PJRT_LoadedExecutable_Destroy_Args, extension_start),
    F(PJRT_LoadedExecutable_Destroy_Args, executable),
    F(PJRT_LoadedExecutable_GetExecutable_Args, struct_size),
    F(PJRT_LoadedExecutable_GetExecutable_Args, extension_start),
    F(PJRT_LoadedExecutable_GetExecutable_Args, loaded_executable),
    F(PJRT_LoadedExecutable_GetExecutable_Args, executable),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, struct_size),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, extension_start),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, executable),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, serialized_bytes),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, serialized_bytes_size),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, serialized_device_assignment),
    F(PJRT_LoadedExecutable_GetDeviceAssignment_Args, serialized_device_assignment_deleter),
    F(PJRT_LoadedExecutable_AddressableDevices_Args, struct_size),
    F(PJRT_LoadedExecutable_AddressableDevices_Args, extension_start),
    F(PJRT_LoadedExecutable_AddressableDevices_Args, executable),
    F(PJRT_LoadedExecutable_AddressableDevices_Args, addressable_devices),
    F(PJRT_LoadedExecutable_AddressableDevices_Args, num_addressable_devices),
    F(PJRT_Executable_OptimizedProgram_Args, struct_size),
    F(PJRT_Executable_OptimizedProgram_Args, extension_start),
    F(PJRT_Executable_OptimizedProgram_Args, executable),
    F(PJRT_Executable_OptimizedProgram_Args, program),
    F(PJRT_Executable_NumOutputs_Args, struct_size),
    F(PJRT_Executable_NumOutputs_Args, extension_start),
    F(PJRT_Executable_NumOutputs_Args, executable), F(PJRT_Executable_NumOutputs_Args, num_outputs),
    F(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, struct_size),
    F(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, extension_start),
    F(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, executable),
    F(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, size_in_bytes),
    F(PJRT_Executable_GetCostAnalysis_Args, struct_size),
    F(PJRT_Executable_GetCostAnalysis_Args, extension_start),
    F(PJRT_Executable_GetCostAnalysis_Args, executable),
    F(PJRT_Executable_GetCostAnalysis_Args, num_properties),
    F(PJRT_Executable_GetCostAnalysis_Args, properties),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, struct_size),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, extension_start),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, executable),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, generated_code_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, argument_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, output_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, alias_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, temp_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, host_generated_code_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, host_argument_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, host_output_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, host_alias_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, host_temp_size_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes),
    F(PJRT_Executable_GetCompiledMemoryStats_Args, total_size_in_bytes),
    F(PJRT_Executable_Serialize_Args, struct_size),
    F(PJRT_Executable_Serialize_Args, extension_start),
    F(PJRT_Executable_Serialize_Args, executable),
    F(PJRT_Executable_Serialize_Args, serialized_bytes),
    F(PJRT_Executable_Serialize_Args, serialized_bytes_size),
    F(PJRT_Executable_Serialize_Args, serialized_executable),
    F(PJRT_Executable_Serialize_Args, serialized_executable_deleter),
    F(PJRT_Executable_DeserializeAndLoad_Args, struct_size),
    F(PJRT_Executable_DeserializeAndLoad_Args, extension_start),
    F(PJRT_Executable_DeserializeAndLoad_Args, client),
    F(PJRT_Executable_DeserializeAndLoad_Args, serialized_executable),
    F(PJRT_Executable_DeserializeAndLoad_Args, serialized_executable_size),
    F(PJRT_Executable_DeserializeAndLoad_Args, loaded_executable),
    F(PJRT_Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options),
    F(PJRT_Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options_size),
    F(PJRT_ExecuteOptions, struct_size), F(PJRT_ExecuteOptions, extension_start),
    F(PJRT_ExecuteOptions, send_callbacks), F(PJRT_ExecuteOptions, recv_callbacks),
    F(PJRT_ExecuteOptions, num_send_ops), F(PJRT_ExecuteOptions, num_recv_ops),
    F(PJRT_ExecuteOptions, launch_id), F(PJRT_ExecuteOptions, non_donatable_input_indices),
    F(PJRT_ExecuteOptions, num_non_donatable_input_indices), F(PJRT_ExecuteOptions, context),
    F(PJRT_ExecuteOptions, call_location), F(PJRT_ExecuteOptions, num_tasks),
    F(PJRT_ExecuteOptions, task_ids), F(PJRT_ExecuteOptions, incarnation_ids),
    F(PJRT_LoadedExecutable_Execute_Args, struct_size),
    F(PJRT_LoadedExecutable_Execute_Args, extension_start),
    F(PJRT_LoadedExecutable_Execute_Args, executable),
    F(PJRT_LoadedExecutable_Execute_Args, options),
    F(PJRT_LoadedExecutable_Execute_Args, argument_lists),
    F(PJRT_LoadedExecutable_Execute_Args, num_devices),
    F(PJRT_LoadedExecutable_Execute_Args, num_args),
    F(PJRT_LoadedExecutable_Execute_Args, output_lists),
    F(PJRT_LoadedExecutable_Execute_Args, device_complete_events),
    F(PJRT_LoadedExecutable_Execute_Args, execute_device),
    F(PJRT_Buffer_MemoryLayout_Tiled, struct_size),
    F(PJRT_Buffer_MemoryLayout_Tiled, extension_start),
    F(PJRT_Buffer_MemoryLayout_Tiled, minor_to_major),
    F(PJRT_Buffer_MemoryLayout_Tiled, minor_to_major_size),
    F(PJRT_Buffer_MemoryLayout_Tiled, tile_dims), F(PJRT_Buffer_MemoryLayout_Tiled, tile_dim_sizes),
    F(PJRT_Buffer_MemoryLayout_Tiled, num_tiles), F(PJRT_Buffer_MemoryLayout_Strides, struct_size),
    F(PJRT_Buffer_MemoryLayout_Strides, extension_start),
    F(PJRT_Buffer_MemoryLayout_Strides, byte_strides),
    F(PJRT_Buffer_MemoryLayout_Strides, num_byte_strides), F(PJRT_Buffer_MemoryLayout, struct_size),
    F(PJRT_Buffer_MemoryLayout, extension_start), F(PJRT_Buffer_MemoryLayout, tiled),
    F(PJRT_Buffer_MemoryLayout, strides), F(PJRT_Buffer_MemoryLayout, type),
    F(PJRT_Client_BufferFromHostBuffer_Args, struct_size),
    F(PJRT_Client_BufferFromHostBuffer_Args, extension_start),
    F(PJRT_Client_BufferFromHostBuffer_Args, client),
    F(PJRT_Client_BufferFromHostBuffer_Args, data), F(PJRT_Client_BufferFromHostBuffer_Args, type),
    F(PJRT_Client_BufferFromHostBuffer_Args, dims),
    F(PJRT_Client_BufferFromHostBuffer_Args, num_dims),
    F(PJRT_Client_BufferFromHostBuffer_Args, byte_strides),
    F(PJRT_Client_BufferFromHostBuffer_Args, num_byte_strides),
    F(PJRT_Client_BufferFromHostBuffer_Args, host_buffer_semantics),
    F(PJRT_Client_BufferFromHostBuffer_Args, device),
    F(PJRT_Client_BufferFromHostBuffer_Args, memory),
    F(PJRT_Client_BufferFromHostBuffer_Args, device_layout),
    F(PJRT_Client_BufferFromHostBuffer_Args, done_with_host_buffer),
    F(PJRT_Client_BufferFromHostBuffer_Args, buffer), F(PJRT_Buffer_Destroy_Args, struct_size),
    F(PJRT_Buffer_Destroy_Args, extension_start), F(PJRT_Buffer_Destroy_Args, buffer),
    F(PJRT_Buffer_ElementType_Args, struct_size), F(PJRT_Buffer_ElementType_Args, extension_start),
    F(PJRT_Buffer_ElementType_Args, buffer), F(PJRT_Buffer_ElementType_Args, type),
    F(PJRT_Buffer_Dimensions_Args, struct_size), F(PJRT_Buffer_Dimensions_Args, extension_start),
    F(PJRT_Buffer_Dimensions_Args, buffer), F(PJRT_Buffer_Dimensions_Args, dims),
    F(PJRT_Buffer_Dimensions_Args, num_dims), F(PJRT_Buffer_ToHostBuffer_Args, struct_size),
    F(PJRT_Buffer_ToHostBuffer_Args, extension_start), F(PJRT_Buffer_ToHostBuffer_Args, src),
    F(PJRT_Buffer_ToHostBuffer_Args, host_layout), F(PJRT_Buffer_ToHostBuffer_Args, dst),
    F(PJRT_Buffer_ToHostBuffer_Args, dst_size), F(PJRT_Buffer_ToHostBuffer_Args, event),
    F(PJRT_Buffer_OnDeviceSizeInBytes_Args, struct_size),
    F(PJRT_Buffer_OnDeviceSizeInBytes_Args, extension_start),
    F(PJRT_Buffer_OnDeviceSizeInBytes_Args, buffer),
    F(PJRT_Buffer_OnDeviceSizeInBytes_Args, on_device_size_in_bytes),
    F(PJRT_Buffer_Delete_Args, struct_size), F(PJRT_Buffer_Delete_Args, extension_start),
    F(PJRT_Buffer_Delete_Args, buffer), F(PJRT_Buffer_IsDeleted_Args, struct_size),
    F(PJRT_Buffer_IsDeleted_Args, extension_start), F(PJRT_Buffer_IsDeleted_Args, buffer),
    F(PJRT_Buffer_IsDeleted_Args, is_deleted), F(PJRT_Buffer_Device_Args, struct_size),
    F(PJRT_Buffer_Device_Args, extension_start), F(PJRT_Buffer_Device_Args, buffer),
    F(PJRT_Buffer_Device_Args, device), F(PJRT_Buffer_ReadyEvent_Args, struct_size),
    F(PJRT_Buffer_ReadyEvent_Args, extension_start), F(PJRT_Buffer_ReadyEvent_Args, buffer),
    F(PJRT_Buffer_ReadyEvent_Args, event), F(PJRT_TopologyDescription_Create_Args, struct_size),
    F(PJRT_TopologyDescription_Create_Args, extension_start),
    F(PJRT_TopologyDescription_Create_Args, topology_name),
    F(PJRT_TopologyDescription_Create_Args, topology_name_size),
    F(PJRT_TopologyDescription_Create_Args, create_options),
    F(PJRT_TopologyDescription_Create_Args, num_options),
    F(PJRT_TopologyDescription_Create_Args, topology),
    F(PJRT_TopologyDescription_Destroy_Args, struct_size),
    F(PJRT_TopologyDescription_Destroy_Args, extension_start),
    F(PJRT_TopologyDescription_Destroy_Args, topology),
    F(PJRT_TopologyDescription_PlatformVersion_Args, struct_size),
    F(PJRT_TopologyDescription_PlatformVersion_Args, extension_start),
    F(PJRT_TopologyDescription_PlatformVersion_Args, topology),
    F(PJRT_TopologyDescription_PlatformVersion_Args, platform_version),
    F(PJRT_TopologyDescription_PlatformVersion_Args, platform_version_size),
    F(PJRT_TopologyDescription_PlatformName_Args, struct_size),
    F(PJRT_TopologyDescription_PlatformName_Args, extension_start),
    F(PJRT_TopologyDescription_PlatformName_Args, topology),
    F(PJRT_TopologyDescription_PlatformName_Args, platform_name),
    F(PJRT_TopologyDescription_PlatformName_Args, platform_name_size),
    F(PJRT_TopologyDescription_GetDeviceDescriptions_Args, struct_size),
    F(PJRT_TopologyDescription_GetDeviceDescriptions_Args, extension_start),
    F(PJRT_TopologyDescription_GetDeviceDescriptions_Args, topology),
    F(PJRT_TopologyDescription_GetDeviceDescriptions_Args, descriptions),
    F(PJRT_TopologyDescription_GetDeviceDescriptions_Args, num_descriptions),
    F(PJRT_TopologyDescription_Attributes_Args, struct_size),
    F(PJRT_TopologyDescription_Attributes_Args, extension_start),
    F(PJRT_TopologyDescription_Attributes_Args, topology),
    F(PJRT_TopologyDescription_Attributes_Args, attributes),
    F(PJRT_TopologyDescription_Attributes_Args, num_attributes), F(PJRT_Compile_Args, struct_size),
    F(PJRT_Compile_Args, extension_start), F(PJRT_Compile_Args, topology),
    F(PJRT_Compile_Args, program), F(PJRT_Compile_Args, compile_options),
    F(PJRT_Compile_Args, compile_options_size), F(PJRT_Compile_Args, client),
    F(PJRT_Compile_Args, executable),
    A(struct_size), A(extension_start), A(pjrt_api_version), A(PJRT_Error_Destroy), A(PJRT_Error_Message),
    A(PJRT_Error_GetCode), A(PJRT_Plugin_Initialize), A(PJRT_Plugin_Attributes), A(PJRT_Event_Destroy),
    A(PJRT_Event_IsReady), A(PJRT_Event_Error), A(PJRT_Event_Await), A(PJRT_Event_OnReady),
    A(PJRT_Client_Create), A(PJRT_Client_Destroy), A(PJRT_Client_PlatformName), A(PJRT_Client_ProcessIndex),
    A(PJRT_Client_PlatformVersion), A(PJRT_Client_Devices), A(PJRT_Client_AddressableDevices),
    A(PJRT_Client_LookupDevice), A(PJRT_Client_LookupAddressableDevice), A(PJRT_Client_AddressableMemories),
    A(PJRT_Client_Compile), A(PJRT_Client_DefaultDeviceAssignment), A(PJRT_Client_BufferFromHostBuffer),
    A(PJRT_DeviceDescription_Id), A(PJRT_DeviceDescription_ProcessIndex),
    A(PJRT_DeviceDescription_Attributes), A(PJRT_DeviceDescription_Kind),
    A(PJRT_DeviceDescription_DebugString), A(PJRT_DeviceDescription_ToString),
    A(PJRT_Device_GetDescription), A(PJRT_Device_IsAddressable), A(PJRT_Device_LocalHardwareId),
    A(PJRT_Device_AddressableMemories), A(PJRT_Device_DefaultMemory), A(PJRT_Device_MemoryStats),
    A(PJRT_Memory_Id), A(PJRT_Memory_Kind), A(PJRT_Memory_DebugString), A(PJRT_Memory_ToString),
    A(PJRT_Memory_AddressableByDevices), A(PJRT_Executable_Destroy), A(PJRT_Executable_Name),
    A(PJRT_Executable_NumReplicas), A(PJRT_Executable_NumPartitions), A(PJRT_Executable_NumOutputs),
    A(PJRT_Executable_SizeOfGeneratedCodeInBytes), A(PJRT_Executable_GetCostAnalysis),
    A(PJRT_Executable_OutputMemoryKinds), A(PJRT_Executable_OptimizedProgram), A(PJRT_Executable_Serialize),
    A(PJRT_LoadedExecutable_Destroy), A(PJRT_LoadedExecutable_GetExecutable),
    A(PJRT_LoadedExecutable_AddressableDevices), A(PJRT_LoadedExecutable_Delete),
    A(PJRT_LoadedExecutable_IsDeleted), A(PJRT_LoadedExecutable_Execute),
    A(PJRT_Executable_DeserializeAndLoad), A(PJRT_LoadedExecutable_Fingerprint), A(PJRT_Buffer_Destroy),
    A(PJRT_Buffer_ElementType), A(PJRT_Buffer_Dimensions), A(PJRT_Buffer_UnpaddedDimensions),
    A(PJRT_Buffer_DynamicDimensionIndices), A(PJRT_Buffer_GetMemoryLayout),
    A(PJRT_Buffer_OnDeviceSizeInBytes), A(PJRT_Buffer_Device), A(PJRT_Buffer_Memory), A(PJRT_Buffer_Delete),
    A(PJRT_Buffer_IsDeleted), A(PJRT_Buffer_CopyToDevice), A(PJRT_Buffer_ToHostBuffer),
    A(PJRT_Buffer_IsOnCpu), A(PJRT_Buffer_ReadyEvent), A(PJRT_Buffer_UnsafePointer),
    A(PJRT_Buffer_IncreaseExternalReferenceCount), A(PJRT_Buffer_DecreaseExternalReferenceCount),
    A(PJRT_Buffer_OpaqueDeviceMemoryDataPointer), A(PJRT_CopyToDeviceStream_Destroy),
    A(PJRT_CopyToDeviceStream_AddChunk), A(PJRT_CopyToDeviceStream_TotalBytes),
    A(PJRT_CopyToDeviceStream_GranuleSize), A(PJRT_CopyToDeviceStream_CurrentBytes),
    A(PJRT_TopologyDescription_Create), A(PJRT_TopologyDescription_Destroy),
    A(PJRT_TopologyDescription_PlatformName), A(PJRT_TopologyDescription_PlatformVersion),
    A(PJRT_TopologyDescription_GetDeviceDescriptions), A(PJRT_TopologyDescription_Serialize),
    A(PJRT_TopologyDescription_Attributes), A(PJRT_Compile), A(PJRT_Executable_OutputElementTypes),
    A(PJRT_Executable_OutputDimensions), A(PJRT_Buffer_CopyToMemory),
    A(PJRT_Client_CreateViewOfDeviceBuffer), A(PJRT_Executable_Fingerprint),
    A(PJRT_Client_TopologyDescription), A(PJRT_Executable_GetCompiledMemoryStats), A(PJRT_Memory_Kind_Id),
    A(PJRT_ExecuteContext_Create), A(PJRT_ExecuteContext_Destroy), A(PJRT_Buffer_CopyRawToHost),
    A(PJRT_AsyncHostToDeviceTransferManager_Destroy), A(PJRT_AsyncHostToDeviceTransferManager_TransferData),
    A(PJRT_Client_CreateBuffersForAsyncHostToDevice),
    A(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer),
    A(PJRT_AsyncHostToDeviceTransferManager_Device), A(PJRT_AsyncHostToDeviceTransferManager_BufferCount),
    A(PJRT_AsyncHostToDeviceTransferManager_BufferSize),
    A(PJRT_AsyncHostToDeviceTransferManager_SetBufferError),
    A(PJRT_AsyncHostToDeviceTransferManager_AddMetadata), A(PJRT_Client_DmaMap), A(PJRT_Client_DmaUnmap),
    A(PJRT_Client_CreateUninitializedBuffer), A(PJRT_Client_UpdateGlobalProcessInfo),
    A(PJRT_TopologyDescription_Deserialize), A(PJRT_Client_CreateAliasBuffer),
    A(PJRT_Client_FulfillAliasBuffer), A(PJRT_LoadedExecutable_GetDeviceAssignment),
    A(PJRT_Client_CreateErrorBuffer), A(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral),
    A(PJRT_Buffer_CopyRawToHostFuture), A(PJRT_Device_PoisonExecution),
    A(PJRT_Device_CreateAsyncTrackingEvent), A(PJRT_AsyncTrackingEvent_Destroy),
    A(PJRT_Executable_GetCompileOptions), A(PJRT_Buffer_DonateWithControlDependency), A(PJRT_Event_Create),
    A(PJRT_Event_Set),
};
#undef A
#undef F
#define E(c) {#c, (size_t)c}
static const named constants[] = {
    E(PJRT_Extension_Type_Gpu_Custom_Call), E(PJRT_Extension_Type_Profiler),
    E(PJRT_Extension_Type_Layouts), E(PJRT_Error_Code_OK), E(PJRT_Error_Code_CANCELLED),
    E(PJRT_Error_Code_UNKNOWN), E(PJRT_Error_Code_INVALID_ARGUMENT),
    E(PJRT_Error_Code_DEADLINE_EXCEEDED), E(PJRT_Error_Code_NOT_FOUND),
    E(PJRT_Error_Code_ALREADY_EXISTS), E(PJRT_Error_Code_PERMISSION_DENIED),
    E(PJRT_Error_Code_RESOURCE_EXHAUSTED), E(PJRT_Error_Code_FAILED_PRECONDITION),
    E(PJRT_Error_Code_ABORTED), E(PJRT_Error_Code_OUT_OF_RANGE), E(PJRT_Error_Code_UNIMPLEMENTED),
    E(PJRT_Error_Code_INTERNAL), E(PJRT_Error_Code_UNAVAILABLE), E(PJRT_Error_Code_DATA_LOSS),
    E(PJRT_Error_Code_UNAUTHENTICATED), E(PJRT_NamedValue_kString), E(PJRT_NamedValue_kInt64),
    E(PJRT_NamedValue_kInt64List), E(PJRT_NamedValue_kFloat), E(PJRT_NamedValue_kBool),
    E(PJRT_Buffer_Type_INVALID), E(PJRT_Buffer_Type_PRED), E(PJRT_Buffer_Type_S8),
    E(PJRT_Buffer_Type_S32), E(PJRT_Buffer_Type_U8), E(PJRT_Buffer_Type_U32),
    E(PJRT_Buffer_Type_F16), E(PJRT_Buffer_Type_F32), E(PJRT_Buffer_Type_BF16),
    E(PJRT_HostBufferSemantics_kImmutableOnlyDuringCall),
    E(PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes),
    E(PJRT_HostBufferSemantics_kImmutableZeroCopy), E(PJRT_HostBufferSemantics_kMutableZeroCopy),
    E(PJRT_Buffer_MemoryLayout_Type_Tiled), E(PJRT_Buffer_MemoryLayout_Type_Strides),
};
#undef E
/* What is passed as struct_size. */
#define S(T) {#T, T##_SIZE}
static const named sizes[] = {
    S(PJRT_Extension_Base), S(PJRT_Api_Version), S(PJRT_NamedValue), S(PJRT_Error_Destroy_Args),
    S(PJRT_Error_Message_Args), S(PJRT_Error_GetCode_Args), S(PJRT_Plugin_Initialize_Args),
    S(PJRT_Plugin_Attributes_Args), S(PJRT_Event_Destroy_Args), S(PJRT_Event_IsReady_Args),
    S(PJRT_Event_Error_Args), S(PJRT_Event_Await_Args), S(PJRT_Event_OnReady_Args),
    S(PJRT_KeyValueGetCallback_Args), S(PJRT_KeyValueTryGetCallback_Args),
    S(PJRT_KeyValuePutCallback_Args), S(PJRT_Client_Create_Args), S(PJRT_Client_Destroy_Args),
    S(PJRT_Client_PlatformName_Args), S(PJRT_Client_ProcessIndex_Args),
    S(PJRT_Client_PlatformVersion_Args), S(PJRT_Client_TopologyDescription_Args),
    S(PJRT_Client_Devices_Args), S(PJRT_Client_AddressableDevices_Args), S(PJRT_Program),
    S(PJRT_Client_Compile_Args), S(PJRT_DeviceDescription_Id_Args),
    S(PJRT_DeviceDescription_ProcessIndex_Args), S(PJRT_DeviceDescription_Attributes_Args),
    S(PJRT_DeviceDescription_Kind_Args), S(PJRT_DeviceDescription_DebugString_Args),
    S(PJRT_Device_GetDescription_Args), S(PJRT_Device_LocalHardwareId_Args),
    S(PJRT_Device_MemoryStats_Args), S(PJRT_Executable_Destroy_Args),
    S(PJRT_LoadedExecutable_Destroy_Args), S(PJRT_LoadedExecutable_GetExecutable_Args),
    S(PJRT_LoadedExecutable_GetDeviceAssignment_Args),
    S(PJRT_LoadedExecutable_AddressableDevices_Args), S(PJRT_Executable_OptimizedProgram_Args),
    S(PJRT_Executable_NumOutputs_Args), S(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args),
    S(PJRT_Executable_GetCostAnalysis_Args), S(PJRT_Executable_GetCompiledMemoryStats_Args),
    S(PJRT_Executable_Serialize_Args), S(PJRT_Executable_DeserializeAndLoad_Args),
    S(PJRT_ExecuteOptions), S(PJRT_LoadedExecutable_Execute_Args),
    S(PJRT_Buffer_MemoryLayout_Tiled), S(PJRT_Buffer_MemoryLayout_Strides),
    S(PJRT_Buffer_MemoryLayout), S(PJRT_Client_BufferFromHostBuffer_Args),
    S(PJRT_Buffer_Destroy_Args), S(PJRT_Buffer_ElementType_Args), S(PJRT_Buffer_Dimensions_Args),
    S(PJRT_Buffer_ToHostBuffer_Args), S(PJRT_Buffer_OnDeviceSizeInBytes_Args),
    S(PJRT_Buffer_Delete_Args), S(PJRT_Buffer_IsDeleted_Args), S(PJRT_Buffer_Device_Args),
    S(PJRT_Buffer_ReadyEvent_Args), S(PJRT_TopologyDescription_Create_Args),
    S(PJRT_TopologyDescription_Destroy_Args), S(PJRT_TopologyDescription_PlatformVersion_Args),
    S(PJRT_TopologyDescription_PlatformName_Args),
    S(PJRT_TopologyDescription_GetDeviceDescriptions_Args),
    S(PJRT_TopologyDescription_Attributes_Args), S(PJRT_Compile_Args),
};
#undef S
/* clang-format on */
enum {
    N_FIELDS = sizeof fields / sizeof *fields,
    N_CONSTANTS = sizeof constants / sizeof *constants,
    N_SIZES = sizeof sizes / sizeof *sizes
};

/* One line of the table, its columns cut apart in place. */
typedef struct row {
    const char *type, *offset, *size, *value,
        *name; /* value: of a constant; of a field, its type */
} row;

static char *table; /* NULL: not there */
static row *rows;
static size_t n_rows;

static int read_table(void **state)
{
    const char *shared = getenv("TESSERA_SHARED");
    char path[4096];
    size_t n, lines = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/reference/pjrt_abi.tsv", shared ? shared : "../shared");
    if (ts_path_kind_of(path) != TS_PATH_FILE) {
        printf("SKIP: %s is not there\n", path);
        return 0;
    }
    if (ts_file_read_all(path, 1 << 20, &table, &n, NULL) != TS_OK) return -1;
    for (size_t i = 0; i < n; i++) lines += table[i] == '\n';
    rows = ts_alloc_zero((lines + 1) * sizeof *rows);
    for (char *line = table, *next; rows && line && *line; line = next) {
        char *column[5] = {0};
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        for (int c = 0; c < 5 && line; c++) {
            column[c] = line;
            if ((line = strchr(line, '\t'))) *line++ = '\0';
        }
        if (*column[0] != '#' && column[4])
            rows[n_rows++] = (row){column[0], column[1], column[2], column[3], column[4]};
    }
    return rows ? 0 : -1;
}

static int free_table(void **state)
{
    (void)state;
    ts_free(table);
    ts_free(rows);
    return 0;
}

static const row *find_row(const char *type, const char *name)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strcmp(rows[i].type, type) == 0 && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static size_t number(const char *text)
{
    return (size_t)strtoull(text, NULL, 10);
}

static void every_field(void **state)
{
    (void)state;
    if (!table) skip();
    for (size_t i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        const row *r = find_row(f->type, f->name);
        if (!r) fail_msg("the table has no %s.%s", f->type, f->name);
        if (number(r->offset) != f->offset || number(r->size) != f->size)
            fail_msg("%s.%s is at %zu with %zu bytes; expected %s with %s", f->type, f->name,
                     f->offset, f->size, r->offset, r->size);
    }
}

/* No field of a struct that the header has may be missing in it. */
static void no_field_left_out(void **state)
{
    (void)state;
    if (!table) skip();
    for (size_t i = 0; i < n_rows; i++) {
        bool ours = false, found = false;
        if (!*rows[i].offset || strcmp(rows[i].name, "}") == 0) continue;
        for (size_t k = 0; k < N_FIELDS; k++) {
            if (strcmp(fields[k].type, rows[i].type) != 0) continue;
            ours = true;
            found = found || strcmp(fields[k].name, rows[i].name) == 0;
        }
        if (ours && !found) fail_msg("the header has no %s.%s", rows[i].type, rows[i].name);
    }
}

/* struct_size: where the last field ends, padding not counted. */
static void every_size(void **state)
{
    (void)state;
    if (!table) skip();
    for (size_t i = 0; i < N_SIZES; i++) {
        size_t end = 0;
        for (size_t k = 0; k < n_rows; k++) {
            if (strcmp(rows[k].type, sizes[i].name) != 0 || !*rows[k].offset) continue;
            size_t here = number(rows[k].offset) + number(rows[k].size);
            if (here > end) end = here;
        }
        if (end != sizes[i].value)
            fail_msg("%s_SIZE is %zu; expected %zu", sizes[i].name, sizes[i].value, end);
    }
}

static void every_constant(void **state)
{
    (void)state;
    if (!table) skip();
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        const row *r = NULL;
        for (size_t k = 0; k < n_rows && !r; k++)
            if (strncmp(rows[k].type, "enum ", 5) == 0 &&
                strcmp(rows[k].name, constants[i].name) == 0)
                r = &rows[k];
        if (!r) fail_msg("the table has no %s", constants[i].name);
        if (number(r->value) != constants[i].value)
            fail_msg("%s is %zu; expected %s", constants[i].name, constants[i].value, r->value);
    }
}

/* What needs no table: sizes that plugins are known to check, the order of the first and last functions. */
static void known_facts(void **state)
{
    (void)state;
    assert_int_equal(sizeof(PJRT_Api), 1064);
    assert_int_equal(offsetof(PJRT_Api, pjrt_api_version), 16);
    assert_int_equal(offsetof(PJRT_Api, PJRT_Error_Destroy), 40);
    assert_int_equal(PJRT_Error_GetCode_Args_SIZE, 28); /* not 32: padding does not count */
    assert_int_equal(PJRT_Client_Create_Args_SIZE, 88);
    assert_int_equal(PJRT_Error_Code_UNAVAILABLE, TS_UNAVAILABLE);
    assert_int_equal(PJRT_Error_Code_DATA_LOSS, TS_DATA_LOSS);
    PJRT_ARGS(PJRT_Event_Await_Args, a);
    assert_int_equal(a.struct_size, 24);
    assert_null(a.extension_start);
    assert_null(a.event);
}

/* The profiler's table is not among the layouts; its functions lie one behind the other. */
static void profiler_facts(void **state)
{
    (void)state;
    assert_int_equal(sizeof(PLUGIN_Profiler_Api), 80);
    assert_int_equal(offsetof(PLUGIN_Profiler_Api, collect_data), 72);
    assert_int_equal(sizeof(PJRT_Profiler_Extension), 40);
    assert_int_equal(offsetof(PLUGIN_Profiler_CollectData_Args, buffer), 16);
    assert_int_equal(offsetof(PLUGIN_Profiler_Error_GetCode_Args, code) + sizeof(int),
                     PLUGIN_Profiler_Error_GetCode_Args_SIZE);
    assert_int_equal(sizeof(PLUGIN_Profiler_Create_Args), PLUGIN_Profiler_Create_Args_SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field), cmocka_unit_test(no_field_left_out),
        cmocka_unit_test(every_size),  cmocka_unit_test(every_constant),
        cmocka_unit_test(known_facts), cmocka_unit_test(profiler_facts),
    };
    return cmocka_run_group_tests(tests, read_table, free_table);
}
