/* xla/pjrt_abi.h – the part of the PJRT C API that Tessera uses, written from the layout of its structs.
 *
 * Every call takes one struct whose first member is its size as the caller knows it: offset and size of the last
 * field, which PJRT_ARGS fills in. A plugin of another minor version reads what it knows. `extension_start` heads
 * a list of optional tables. Outputs are marked; the rest are inputs. Strings have sizes and need not end in a
 * zero. Layout of API 0.90 (LP64), which plugins of 0.106 to 0.117 accept; tests/unit/test_pjrt_abi.c compares
 * every offset with the table the layout was taken from.
 * Not here: functions nobody calls (they are void * in PJRT_Api, to keep the places of the others).
 */
#ifndef TS_PJRT_ABI_H
#define TS_PJRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PJRT_API_MAJOR = 0, PJRT_API_MINOR = 90 };

typedef struct PJRT_Error PJRT_Error;
typedef struct PJRT_Event PJRT_Event;
typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;
typedef struct PJRT_Executable PJRT_Executable;
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;
typedef struct PJRT_Buffer PJRT_Buffer;
typedef struct PJRT_ExecuteContext PJRT_ExecuteContext;
typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
typedef struct PJRT_DeviceAssignmentSerialized PJRT_DeviceAssignmentSerialized;
typedef struct PJRT_SendCallbackInfo PJRT_SendCallbackInfo;
typedef struct PJRT_RecvCallbackInfo PJRT_RecvCallbackInfo;
typedef struct PJRT_CallbackError PJRT_CallbackError;

/* Declares a zeroed argument struct with its size set. */
#define PJRT_ARGS(T, name) \
    T name = { .struct_size = T##_SIZE }

typedef enum PJRT_Extension_Type {
    PJRT_Extension_Type_Gpu_Custom_Call = 0,
    PJRT_Extension_Type_Profiler = 1,
    PJRT_Extension_Type_Layouts = 4,
} PJRT_Extension_Type;
typedef enum PJRT_Error_Code {
    PJRT_Error_Code_OK = 0,
    PJRT_Error_Code_CANCELLED = 1,
    PJRT_Error_Code_UNKNOWN = 2,
    PJRT_Error_Code_INVALID_ARGUMENT = 3,
    PJRT_Error_Code_DEADLINE_EXCEEDED = 4,
    PJRT_Error_Code_NOT_FOUND = 5,
    PJRT_Error_Code_ALREADY_EXISTS = 6,
    PJRT_Error_Code_PERMISSION_DENIED = 7,
    PJRT_Error_Code_RESOURCE_EXHAUSTED = 8,
    PJRT_Error_Code_FAILED_PRECONDITION = 9,
    PJRT_Error_Code_ABORTED = 10,
    PJRT_Error_Code_OUT_OF_RANGE = 11,
    PJRT_Error_Code_UNIMPLEMENTED = 12,
    PJRT_Error_Code_INTERNAL = 13,
    PJRT_Error_Code_UNAVAILABLE = 14,
    PJRT_Error_Code_DATA_LOSS = 15,
    PJRT_Error_Code_UNAUTHENTICATED = 16,
} PJRT_Error_Code;
typedef enum PJRT_NamedValue_Type {
    PJRT_NamedValue_kString = 0,
    PJRT_NamedValue_kInt64 = 1,
    PJRT_NamedValue_kInt64List = 2,
    PJRT_NamedValue_kFloat = 3,
    PJRT_NamedValue_kBool = 4,
} PJRT_NamedValue_Type;
typedef enum PJRT_Buffer_Type {
    PJRT_Buffer_Type_INVALID = 0,
    PJRT_Buffer_Type_PRED = 1,
    PJRT_Buffer_Type_S8 = 2,
    PJRT_Buffer_Type_S32 = 4,
    PJRT_Buffer_Type_U8 = 6,
    PJRT_Buffer_Type_U32 = 8,
    PJRT_Buffer_Type_F16 = 10,
    PJRT_Buffer_Type_F32 = 11,
    PJRT_Buffer_Type_BF16 = 13,
} PJRT_Buffer_Type;
typedef enum PJRT_HostBufferSemantics {
    PJRT_HostBufferSemantics_kImmutableOnlyDuringCall = 0,
    PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes = 1,
    PJRT_HostBufferSemantics_kImmutableZeroCopy = 2,
    PJRT_HostBufferSemantics_kMutableZeroCopy = 3,
} PJRT_HostBufferSemantics;
typedef enum PJRT_Buffer_MemoryLayout_Type {
    PJRT_Buffer_MemoryLayout_Type_Tiled = 0,
    PJRT_Buffer_MemoryLayout_Type_Strides = 1,
} PJRT_Buffer_MemoryLayout_Type;

/* ---- Extensions, version, values ----------------------------------------------------------------- */

typedef struct PJRT_Extension_Base {
    size_t struct_size;
    PJRT_Extension_Type type;
    struct PJRT_Extension_Base *next;
} PJRT_Extension_Base;
enum { PJRT_Extension_Base_SIZE = sizeof(PJRT_Extension_Base) };

/* struct T of size_t struct_size, the extensions, and what follows; T_SIZE ends with its last field. */
#define PJRT_STRUCT(T, last, ...)              \
    typedef struct T {                         \
        size_t struct_size;                    \
        PJRT_Extension_Base *extension_start;  \
        __VA_ARGS__                            \
    } T;                                       \
    enum { T##_SIZE = offsetof(T, last) + sizeof(((T *)NULL)->last) }

PJRT_STRUCT(PJRT_Api_Version, minor_version, int major_version, minor_version;);
PJRT_STRUCT(PJRT_NamedValue, value_size, const char *name; size_t name_size; PJRT_NamedValue_Type type;
            union { const char *string_value; int64_t int64_value; const int64_t *int64_array_value;
                    float float_value; bool bool_value; };
            size_t value_size;);

/* ---- Errors and the plugin ----------------------------------------------------------------------- */

PJRT_STRUCT(PJRT_Error_Destroy_Args, error, PJRT_Error *error;);
PJRT_STRUCT(PJRT_Error_Message_Args, message_size, const PJRT_Error *error; const char *message;
            size_t message_size;);
PJRT_STRUCT(PJRT_Error_GetCode_Args, code, const PJRT_Error *error; PJRT_Error_Code code;);
PJRT_STRUCT(PJRT_Plugin_Initialize_Args, extension_start,);
PJRT_STRUCT(PJRT_Plugin_Attributes_Args, num_attributes, const PJRT_NamedValue *attributes; size_t num_attributes;);

/* ---- Events -------------------------------------------------------------------------------------- */

typedef void (*PJRT_Event_OnReadyCallback)(PJRT_Error *error, void *user_arg);

PJRT_STRUCT(PJRT_Event_Destroy_Args, event, PJRT_Event *event;);
PJRT_STRUCT(PJRT_Event_IsReady_Args, is_ready, PJRT_Event *event; bool is_ready;);
PJRT_STRUCT(PJRT_Event_Error_Args, event, PJRT_Event *event;);
PJRT_STRUCT(PJRT_Event_Await_Args, event, PJRT_Event *event;);
PJRT_STRUCT(PJRT_Event_OnReady_Args, user_arg, PJRT_Event *event; PJRT_Event_OnReadyCallback callback;
            void *user_arg;);

/* ---- Clients; the key-value callbacks join processes --------------------------------------------- */

typedef struct PJRT_KeyValueGetCallback_Args PJRT_KeyValueGetCallback_Args;
typedef struct PJRT_KeyValueTryGetCallback_Args PJRT_KeyValueTryGetCallback_Args;
typedef struct PJRT_KeyValuePutCallback_Args PJRT_KeyValuePutCallback_Args;
typedef PJRT_Error *(*PJRT_CallbackErrorFn)(PJRT_Error_Code code, const char *message, size_t message_size);
typedef void (*PJRT_KeyValueGetCallback_ValueDeleter)(char *value);
typedef void (*PJRT_KeyValueTryGetCallback_ValueDeleter)(char *value);
typedef PJRT_Error *(*PJRT_KeyValueGetCallback)(PJRT_KeyValueGetCallback_Args *);
typedef PJRT_Error *(*PJRT_KeyValueTryGetCallback)(PJRT_KeyValueTryGetCallback_Args *);
typedef PJRT_Error *(*PJRT_KeyValuePutCallback)(PJRT_KeyValuePutCallback_Args *);

PJRT_STRUCT(PJRT_KeyValueGetCallback_Args, value_deleter_callback, const char *key; size_t key_size;
            int timeout_in_ms; PJRT_CallbackErrorFn *callback_error; void *user_arg; char *value; size_t value_size;
            PJRT_KeyValueGetCallback_ValueDeleter value_deleter_callback;);
PJRT_STRUCT(PJRT_KeyValueTryGetCallback_Args, value_deleter_callback, const char *key; size_t key_size;
            PJRT_CallbackErrorFn *callback_error; void *user_arg; char *value; size_t value_size;
            PJRT_KeyValueTryGetCallback_ValueDeleter value_deleter_callback;);
PJRT_STRUCT(PJRT_KeyValuePutCallback_Args, user_arg, const char *key; size_t key_size; const char *value;
            size_t value_size; PJRT_CallbackErrorFn *callback_error; void *user_arg;);
PJRT_STRUCT(PJRT_Client_Create_Args, kv_try_get_user_arg, const PJRT_NamedValue *create_options; size_t num_options;
            PJRT_KeyValueGetCallback kv_get_callback; void *kv_get_user_arg;
            PJRT_KeyValuePutCallback kv_put_callback; void *kv_put_user_arg; PJRT_Client *client;
            PJRT_KeyValueTryGetCallback kv_try_get_callback; void *kv_try_get_user_arg;);
PJRT_STRUCT(PJRT_Client_Destroy_Args, client, PJRT_Client *client;);
PJRT_STRUCT(PJRT_Client_PlatformName_Args, platform_name_size, PJRT_Client *client; const char *platform_name;
            size_t platform_name_size;);
PJRT_STRUCT(PJRT_Client_ProcessIndex_Args, process_index, PJRT_Client *client; int process_index;);
PJRT_STRUCT(PJRT_Client_PlatformVersion_Args, platform_version_size, PJRT_Client *client;
            const char *platform_version; size_t platform_version_size;);
PJRT_STRUCT(PJRT_Client_TopologyDescription_Args, topology, PJRT_Client *client; PJRT_TopologyDescription *topology;);
PJRT_STRUCT(PJRT_Client_Devices_Args, num_devices, PJRT_Client *client; PJRT_Device *const *devices;
            size_t num_devices;);
PJRT_STRUCT(PJRT_Client_AddressableDevices_Args, num_addressable_devices, PJRT_Client *client;
            PJRT_Device *const *addressable_devices; size_t num_addressable_devices;);
PJRT_STRUCT(PJRT_Program, format_size, char *code; size_t code_size; const char *format; size_t format_size;);
PJRT_STRUCT(PJRT_Client_Compile_Args, executable, PJRT_Client *client; const PJRT_Program *program;
            const char *compile_options; size_t compile_options_size; PJRT_LoadedExecutable *executable;);

/* ---- Devices ------------------------------------------------------------------------------------- */

PJRT_STRUCT(PJRT_DeviceDescription_Id_Args, id, PJRT_DeviceDescription *device_description; int id;);
PJRT_STRUCT(PJRT_DeviceDescription_ProcessIndex_Args, process_index, PJRT_DeviceDescription *device_description;
            int process_index;);
PJRT_STRUCT(PJRT_DeviceDescription_Attributes_Args, attributes, PJRT_DeviceDescription *device_description;
            size_t num_attributes; const PJRT_NamedValue *attributes;);
PJRT_STRUCT(PJRT_DeviceDescription_Kind_Args, device_kind_size, PJRT_DeviceDescription *device_description;
            const char *device_kind; size_t device_kind_size;);
PJRT_STRUCT(PJRT_DeviceDescription_DebugString_Args, debug_string_size, PJRT_DeviceDescription *device_description;
            const char *debug_string; size_t debug_string_size;);
PJRT_STRUCT(PJRT_Device_GetDescription_Args, device_description, PJRT_Device *device;
            PJRT_DeviceDescription *device_description;);
PJRT_STRUCT(PJRT_Device_LocalHardwareId_Args, local_hardware_id, PJRT_Device *device; int local_hardware_id;);
PJRT_STRUCT(PJRT_Device_MemoryStats_Args, peak_pool_bytes_is_set, PJRT_Device *device;
            int64_t bytes_in_use, peak_bytes_in_use; bool peak_bytes_in_use_is_set; int64_t num_allocs;
            bool num_allocs_is_set; int64_t largest_alloc_size; bool largest_alloc_size_is_set; int64_t bytes_limit;
            bool bytes_limit_is_set; int64_t bytes_reserved; bool bytes_reserved_is_set;
            int64_t peak_bytes_reserved; bool peak_bytes_reserved_is_set; int64_t bytes_reservable_limit;
            bool bytes_reservable_limit_is_set; int64_t largest_free_block_bytes;
            bool largest_free_block_bytes_is_set; int64_t pool_bytes; bool pool_bytes_is_set;
            int64_t peak_pool_bytes; bool peak_pool_bytes_is_set;);

/* ---- Executables --------------------------------------------------------------------------------- */

PJRT_STRUCT(PJRT_Executable_Destroy_Args, executable, PJRT_Executable *executable;);
PJRT_STRUCT(PJRT_LoadedExecutable_Destroy_Args, executable, PJRT_LoadedExecutable *executable;);
PJRT_STRUCT(PJRT_LoadedExecutable_GetExecutable_Args, executable, PJRT_LoadedExecutable *loaded_executable;
            PJRT_Executable *executable;);
PJRT_STRUCT(PJRT_LoadedExecutable_GetDeviceAssignment_Args, serialized_device_assignment_deleter,
            PJRT_LoadedExecutable *executable; const char *serialized_bytes; size_t serialized_bytes_size;
            PJRT_DeviceAssignmentSerialized *serialized_device_assignment;
            void (*serialized_device_assignment_deleter)(PJRT_DeviceAssignmentSerialized *););
PJRT_STRUCT(PJRT_LoadedExecutable_AddressableDevices_Args, num_addressable_devices,
            PJRT_LoadedExecutable *executable; PJRT_Device *const *addressable_devices;
            size_t num_addressable_devices;);
PJRT_STRUCT(PJRT_Executable_OptimizedProgram_Args, program, PJRT_Executable *executable; PJRT_Program *program;);
PJRT_STRUCT(PJRT_Executable_NumOutputs_Args, num_outputs, PJRT_Executable *executable; size_t num_outputs;);
PJRT_STRUCT(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, size_in_bytes, PJRT_Executable *executable;
            int64_t size_in_bytes;);
PJRT_STRUCT(PJRT_Executable_GetCostAnalysis_Args, properties, PJRT_Executable *executable; size_t num_properties;
            const PJRT_NamedValue *properties;);
PJRT_STRUCT(PJRT_Executable_GetCompiledMemoryStats_Args, total_size_in_bytes, PJRT_Executable *executable;
            int64_t generated_code_size_in_bytes, argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes,
                temp_size_in_bytes, host_generated_code_size_in_bytes, host_argument_size_in_bytes,
                host_output_size_in_bytes, host_alias_size_in_bytes, host_temp_size_in_bytes, peak_memory_in_bytes,
                total_size_in_bytes;);
PJRT_STRUCT(PJRT_Executable_Serialize_Args, serialized_executable_deleter, const PJRT_Executable *executable;
            const char *serialized_bytes; size_t serialized_bytes_size;
            PJRT_SerializedExecutable *serialized_executable;
            void (*serialized_executable_deleter)(PJRT_SerializedExecutable *););
PJRT_STRUCT(PJRT_Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options_size,
            PJRT_Client *client; const char *serialized_executable; size_t serialized_executable_size;
            PJRT_LoadedExecutable *loaded_executable; const char *overridden_serialized_compile_options;
            size_t overridden_serialized_compile_options_size;);
PJRT_STRUCT(PJRT_ExecuteOptions, incarnation_ids, PJRT_SendCallbackInfo **send_callbacks;
            PJRT_RecvCallbackInfo **recv_callbacks; size_t num_send_ops, num_recv_ops; int launch_id;
            const int64_t *non_donatable_input_indices; size_t num_non_donatable_input_indices;
            PJRT_ExecuteContext *context; const char *call_location; size_t num_tasks; int *task_ids;
            int64_t *incarnation_ids;);
PJRT_STRUCT(PJRT_LoadedExecutable_Execute_Args, execute_device, PJRT_LoadedExecutable *executable;
            PJRT_ExecuteOptions *options; PJRT_Buffer *const * const *argument_lists; size_t num_devices, num_args;
            PJRT_Buffer **const *output_lists; PJRT_Event **device_complete_events; PJRT_Device *execute_device;);

/* ---- Buffers ------------------------------------------------------------------------------------- */

PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Tiled, num_tiles, const int64_t *minor_to_major; size_t minor_to_major_size;
            const int64_t *tile_dims; const size_t *tile_dim_sizes; size_t num_tiles;);
PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Strides, num_byte_strides, const int64_t *byte_strides;
            size_t num_byte_strides;);
PJRT_STRUCT(PJRT_Buffer_MemoryLayout, type,
            union { PJRT_Buffer_MemoryLayout_Tiled tiled; PJRT_Buffer_MemoryLayout_Strides strides; };
            PJRT_Buffer_MemoryLayout_Type type;);
PJRT_STRUCT(PJRT_Client_BufferFromHostBuffer_Args, buffer, PJRT_Client *client; const void *data;
            PJRT_Buffer_Type type; const int64_t *dims; size_t num_dims; const int64_t *byte_strides;
            size_t num_byte_strides; PJRT_HostBufferSemantics host_buffer_semantics; PJRT_Device *device;
            PJRT_Memory *memory; PJRT_Buffer_MemoryLayout *device_layout; PJRT_Event *done_with_host_buffer;
            PJRT_Buffer *buffer;);
PJRT_STRUCT(PJRT_Buffer_Destroy_Args, buffer, PJRT_Buffer *buffer;);
PJRT_STRUCT(PJRT_Buffer_ElementType_Args, type, PJRT_Buffer *buffer; PJRT_Buffer_Type type;);
PJRT_STRUCT(PJRT_Buffer_Dimensions_Args, num_dims, PJRT_Buffer *buffer; const int64_t *dims; size_t num_dims;);
PJRT_STRUCT(PJRT_Buffer_ToHostBuffer_Args, event, PJRT_Buffer *src; PJRT_Buffer_MemoryLayout *host_layout;
            void *dst; size_t dst_size; PJRT_Event *event;);
PJRT_STRUCT(PJRT_Buffer_OnDeviceSizeInBytes_Args, on_device_size_in_bytes, PJRT_Buffer *buffer;
            size_t on_device_size_in_bytes;);
PJRT_STRUCT(PJRT_Buffer_Delete_Args, buffer, PJRT_Buffer *buffer;);
PJRT_STRUCT(PJRT_Buffer_IsDeleted_Args, is_deleted, PJRT_Buffer *buffer; bool is_deleted;);
PJRT_STRUCT(PJRT_Buffer_Device_Args, device, PJRT_Buffer *buffer; PJRT_Device *device;);
PJRT_STRUCT(PJRT_Buffer_ReadyEvent_Args, event, PJRT_Buffer *buffer; PJRT_Event *event;);

/* ---- Topologies, and compilation for one without its devices ------------------------------------- */

PJRT_STRUCT(PJRT_TopologyDescription_Create_Args, topology, const char *topology_name; size_t topology_name_size;
            const PJRT_NamedValue *create_options; size_t num_options; PJRT_TopologyDescription *topology;);
PJRT_STRUCT(PJRT_TopologyDescription_Destroy_Args, topology, PJRT_TopologyDescription *topology;);
PJRT_STRUCT(PJRT_TopologyDescription_PlatformVersion_Args, platform_version_size,
            PJRT_TopologyDescription *topology; const char *platform_version; size_t platform_version_size;);
PJRT_STRUCT(PJRT_TopologyDescription_PlatformName_Args, platform_name_size,
            const PJRT_TopologyDescription *topology; const char *platform_name; size_t platform_name_size;);
PJRT_STRUCT(PJRT_TopologyDescription_GetDeviceDescriptions_Args, num_descriptions,
            const PJRT_TopologyDescription *topology; PJRT_DeviceDescription *const *descriptions;
            size_t num_descriptions;);
PJRT_STRUCT(PJRT_TopologyDescription_Attributes_Args, num_attributes, PJRT_TopologyDescription *topology;
            const PJRT_NamedValue *attributes; size_t num_attributes;);
PJRT_STRUCT(PJRT_Compile_Args, executable, const PJRT_TopologyDescription *topology; const PJRT_Program *program;
            const char *compile_options; size_t compile_options_size; PJRT_Client *client;
            PJRT_Executable *executable;);

/* ---- the table ----------------------------------------------------------------------------- */

#define PJRT_FUNCTION(name)  PJRT_Error *(*name)(name##_Args *)
#define PJRT_PROCEDURE(name) void (*name)(name##_Args *)

typedef struct PJRT_Api {
    size_t struct_size; /* of the plugin: compare before using a field */
    PJRT_Extension_Base *extension_start;
    PJRT_Api_Version pjrt_api_version;
    PJRT_PROCEDURE(PJRT_Error_Destroy);
    PJRT_PROCEDURE(PJRT_Error_Message);
    PJRT_FUNCTION(PJRT_Error_GetCode);
    PJRT_FUNCTION(PJRT_Plugin_Initialize);
    PJRT_FUNCTION(PJRT_Plugin_Attributes);
    PJRT_FUNCTION(PJRT_Event_Destroy);
    PJRT_FUNCTION(PJRT_Event_IsReady);
    PJRT_FUNCTION(PJRT_Event_Error);
    PJRT_FUNCTION(PJRT_Event_Await);
    PJRT_FUNCTION(PJRT_Event_OnReady);
    PJRT_FUNCTION(PJRT_Client_Create);
    PJRT_FUNCTION(PJRT_Client_Destroy);
    PJRT_FUNCTION(PJRT_Client_PlatformName);
    PJRT_FUNCTION(PJRT_Client_ProcessIndex);
    PJRT_FUNCTION(PJRT_Client_PlatformVersion);
    PJRT_FUNCTION(PJRT_Client_Devices);
    PJRT_FUNCTION(PJRT_Client_AddressableDevices);
    void *PJRT_Client_LookupDevice, *PJRT_Client_LookupAddressableDevice, *PJRT_Client_AddressableMemories;
    PJRT_FUNCTION(PJRT_Client_Compile);
    void *PJRT_Client_DefaultDeviceAssignment;
    PJRT_FUNCTION(PJRT_Client_BufferFromHostBuffer);
    PJRT_FUNCTION(PJRT_DeviceDescription_Id);
    PJRT_FUNCTION(PJRT_DeviceDescription_ProcessIndex);
    PJRT_FUNCTION(PJRT_DeviceDescription_Attributes);
    PJRT_FUNCTION(PJRT_DeviceDescription_Kind);
    PJRT_FUNCTION(PJRT_DeviceDescription_DebugString);
    void *PJRT_DeviceDescription_ToString;
    PJRT_FUNCTION(PJRT_Device_GetDescription);
    void *PJRT_Device_IsAddressable;
    PJRT_FUNCTION(PJRT_Device_LocalHardwareId);
    void *PJRT_Device_AddressableMemories, *PJRT_Device_DefaultMemory;
    PJRT_FUNCTION(PJRT_Device_MemoryStats);
    void *PJRT_Memory_Id, *PJRT_Memory_Kind, *PJRT_Memory_DebugString, *PJRT_Memory_ToString,
        *PJRT_Memory_AddressableByDevices;
    PJRT_FUNCTION(PJRT_Executable_Destroy);
    void *PJRT_Executable_Name, *PJRT_Executable_NumReplicas, *PJRT_Executable_NumPartitions;
    PJRT_FUNCTION(PJRT_Executable_NumOutputs);
    PJRT_FUNCTION(PJRT_Executable_SizeOfGeneratedCodeInBytes);
    PJRT_FUNCTION(PJRT_Executable_GetCostAnalysis);
    void *PJRT_Executable_OutputMemoryKinds;
    PJRT_FUNCTION(PJRT_Executable_OptimizedProgram);
    PJRT_FUNCTION(PJRT_Executable_Serialize);
    PJRT_FUNCTION(PJRT_LoadedExecutable_Destroy);
    PJRT_FUNCTION(PJRT_LoadedExecutable_GetExecutable);
    PJRT_FUNCTION(PJRT_LoadedExecutable_AddressableDevices);
    void *PJRT_LoadedExecutable_Delete, *PJRT_LoadedExecutable_IsDeleted;
    PJRT_FUNCTION(PJRT_LoadedExecutable_Execute);
    PJRT_FUNCTION(PJRT_Executable_DeserializeAndLoad);
    void *PJRT_LoadedExecutable_Fingerprint;
    PJRT_FUNCTION(PJRT_Buffer_Destroy);
    PJRT_FUNCTION(PJRT_Buffer_ElementType);
    PJRT_FUNCTION(PJRT_Buffer_Dimensions);
    void *PJRT_Buffer_UnpaddedDimensions, *PJRT_Buffer_DynamicDimensionIndices, *PJRT_Buffer_GetMemoryLayout;
    PJRT_FUNCTION(PJRT_Buffer_OnDeviceSizeInBytes);
    PJRT_FUNCTION(PJRT_Buffer_Device);
    void *PJRT_Buffer_Memory;
    PJRT_FUNCTION(PJRT_Buffer_Delete);
    PJRT_FUNCTION(PJRT_Buffer_IsDeleted);
    void *PJRT_Buffer_CopyToDevice;
    PJRT_FUNCTION(PJRT_Buffer_ToHostBuffer);
    void *PJRT_Buffer_IsOnCpu;
    PJRT_FUNCTION(PJRT_Buffer_ReadyEvent);
    void *PJRT_Buffer_UnsafePointer, *PJRT_Buffer_IncreaseExternalReferenceCount,
        *PJRT_Buffer_DecreaseExternalReferenceCount, *PJRT_Buffer_OpaqueDeviceMemoryDataPointer,
        *PJRT_CopyToDeviceStream_Destroy, *PJRT_CopyToDeviceStream_AddChunk, *PJRT_CopyToDeviceStream_TotalBytes,
        *PJRT_CopyToDeviceStream_GranuleSize, *PJRT_CopyToDeviceStream_CurrentBytes;
    PJRT_FUNCTION(PJRT_TopologyDescription_Create);
    PJRT_FUNCTION(PJRT_TopologyDescription_Destroy);
    PJRT_FUNCTION(PJRT_TopologyDescription_PlatformName);
    PJRT_FUNCTION(PJRT_TopologyDescription_PlatformVersion);
    PJRT_FUNCTION(PJRT_TopologyDescription_GetDeviceDescriptions);
    void *PJRT_TopologyDescription_Serialize;
    PJRT_FUNCTION(PJRT_TopologyDescription_Attributes);
    PJRT_FUNCTION(PJRT_Compile);
    void *PJRT_Executable_OutputElementTypes, *PJRT_Executable_OutputDimensions, *PJRT_Buffer_CopyToMemory,
        *PJRT_Client_CreateViewOfDeviceBuffer, *PJRT_Executable_Fingerprint;
    PJRT_FUNCTION(PJRT_Client_TopologyDescription);
    PJRT_FUNCTION(PJRT_Executable_GetCompiledMemoryStats);
    void *PJRT_Memory_Kind_Id, *PJRT_ExecuteContext_Create, *PJRT_ExecuteContext_Destroy, *PJRT_Buffer_CopyRawToHost,
        *PJRT_AsyncHostToDeviceTransferManager_Destroy, *PJRT_AsyncHostToDeviceTransferManager_TransferData,
        *PJRT_Client_CreateBuffersForAsyncHostToDevice, *PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer,
        *PJRT_AsyncHostToDeviceTransferManager_Device, *PJRT_AsyncHostToDeviceTransferManager_BufferCount,
        *PJRT_AsyncHostToDeviceTransferManager_BufferSize, *PJRT_AsyncHostToDeviceTransferManager_SetBufferError,
        *PJRT_AsyncHostToDeviceTransferManager_AddMetadata, *PJRT_Client_DmaMap, *PJRT_Client_DmaUnmap,
        *PJRT_Client_CreateUninitializedBuffer, *PJRT_Client_UpdateGlobalProcessInfo,
        *PJRT_TopologyDescription_Deserialize, *PJRT_Client_CreateAliasBuffer, *PJRT_Client_FulfillAliasBuffer;
    PJRT_FUNCTION(PJRT_LoadedExecutable_GetDeviceAssignment);
    void *PJRT_Client_CreateErrorBuffer, *PJRT_AsyncHostToDeviceTransferManager_TransferLiteral,
        *PJRT_Buffer_CopyRawToHostFuture, *PJRT_Device_PoisonExecution, *PJRT_Device_CreateAsyncTrackingEvent,
        *PJRT_AsyncTrackingEvent_Destroy, *PJRT_Executable_GetCompileOptions,
        *PJRT_Buffer_DonateWithControlDependency, *PJRT_Event_Create, *PJRT_Event_Set;
} PJRT_Api;

/* The one symbol of a plugin. */
typedef const PJRT_Api *PJRT_GetApi(void);

#endif
